#!/usr/bin/env python3
"""Drives the built `heddle` command: usage, exit codes, sentences, shapes of --json. Needs no GPU.

    tools_cli_test.py PATH_OF_HEDDLE [PATH_OF_MOCK_CUDA PATH_OF_MOCK_CUBLAS]
"""
import json
import os
import pathlib
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

HEDDLE = ""
MOCKS = []
ROOT = pathlib.Path(__file__).resolve().parent.parent
VERBS = ["demo", "verify", "variants", "compile", "plan", "bench", "cache"]
SPEC = {"name": "steep", "params": {"slope": {"type": "f32", "default": 2.0}},
        "mask": {"causal": True}, "hooks": {"logits_transform": "return params.slope * logit;"}}


def heddle(*words, **environment):
    return subprocess.run([HEDDLE, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=600,
                          env={**os.environ, **environment})


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def done(self, *words, code=0, **environment):
        result = heddle(*words, **environment)
        self.assertEqual(result.returncode, code, f"{words}: {result.stdout}{result.stderr}")
        if code == 0:
            self.assertEqual(result.stderr, "", "stderr is for errors, and for progress on a terminal")
        return result.stdout

    def refused(self, *words, says=""):
        """Exit code 2 and one full sentence on stderr."""
        result = heddle(*words)
        self.assertEqual(result.returncode, 2, f"{words}: {result.stdout}{result.stderr}")
        self.assertTrue(result.stderr.startswith("heddle: "), result.stderr)
        if "the whole log" not in result.stderr:  # a compiler's words follow there
            self.assertRegex(result.stderr.rstrip(), r"[.?]$")
        self.assertRegex(result.stderr, says)
        return result.stderr

    def figures(self, *words, code=0):
        path = self.folder / "figures.json"
        self.done(*words, "--json", path, code=code)
        return json.loads(path.read_text())


class Usage(Command):
    def test_alone_it_lists_the_verbs(self):
        text = self.done()
        for verb in VERBS:
            self.assertRegex(text, rf"(?m)^  {verb} ")

    def test_version(self):
        self.assertRegex(self.done("--version"), r"^heddle \d+\.\d+\.\d+$")
        self.assertEqual(self.done("help"), self.done())

    def test_every_verb_has_help(self):
        for verb in VERBS:
            self.assertIn("--help", self.done(verb, "--help"))

    def test_unknown_verb_offers_the_nearest(self):
        self.refused("verfy", says="`verify`")

    def test_unknown_option_offers_the_nearest(self):
        self.refused("plan", "--kvv", "64x4096", says="`--kv`")

    def test_words_cannot_steer_the_terminal(self):
        said = self.refused("plan", "--heads", "32,8\x1b[31m,128\x07", says=r"32,8\\x1b\[31m,128\\x07")
        self.assertTrue(said.isprintable() or said.strip().isprintable(), said)

    def test_wrong_values_are_sentences(self):
        self.refused("plan", "--kv", "64y4096", says="64y4096")
        self.refused("plan", "--heads", "32,8", says="three")
        self.refused("plan", "--heads", "32,5,128", says="32.*5|5.*32")
        self.refused("verify", "--device", "tpu", says="auto, cuda or cpu")
        self.refused("verify", "--dtype", "f64", says="bf16 or f16")
        self.refused("verify", "--param", "cap", says="cap=30")
        self.refused("verify", "--variant", "sofmax", says="softmax")
        self.refused("variants", "check", self.folder / "none.json", says="none.json")


    def test_files_that_cannot_serve_are_sentences(self):
        bench = ["bench", "--device", "cpu", "--workloads"]
        self.refused(*bench, self.folder, says="is a folder; give a file")
        self.refused(*bench, self.folder / "none.json", says="none.json cannot be read: No such file")
        self.refused(*bench, self.write("half.json", '{"workloads": ['), says="half.json is not JSON: ")
        self.refused("plan", "--kv", "4x16", "--json", self.folder / "no/such.json", says="such.json cannot be written")


class Variants(Command):
    def test_list_has_the_built_in_ones(self):
        text = self.done("variants", "list")
        for name in ["softmax", "causal", "soft_cap", "sliding_window", "sigmoid", "gemma2", "alibi", "rope", "tree_mask"]:
            self.assertRegex(text, rf"(?m)^{name}\b")

    def test_show_prints_the_spec(self):
        spec, end = json.JSONDecoder().raw_decode(self.done("variants", "show", "gemma2"))
        self.assertEqual(spec["name"], "gemma2")
        self.assertEqual(self.figures("variants", "show", "gemma2")["spec"], spec)
        self.refused("variants", "show", "gema2", says="gemma2")

    def test_show_says_which_tiles_run_mask_code(self):
        for name, words in [("soft_cap", "none, but"), ("causal", r"boundary tiles of the declared mask \(causal\)"),
                            ("gemma2", r"boundary tiles .*\(causal, window_left = window\)"),
                            ("streaming_llm", r"boundary tiles .*sink = sinks\)"),
                            ("custom_mask", "every tile that the free mask can touch: all"),
                            ("multi_item", r"every tile .*those that the declared mask \(causal\) leaves")]:
            self.assertRegex(self.done("variants", "show", name), rf"(?m)^mask code runs in: {words}")
            self.assertRegex(self.figures("variants", "show", name)["mask_code"], f"^{words}")

    def test_verify_runs_every_built_in_variant_on_the_cpu(self):
        for variant in self.figures("variants", "list"):
            figures = self.figures("verify", "--device", "cpu", "--variant", variant["name"], "--heads", "4,2,64",
                                   "--qo", "[1,5,40]", "--kv", "[700,33,65]")
            self.assertTrue(figures["ok"], f"{variant['name']}: {figures}")

    def test_check_accepts_a_good_file_and_points_into_a_bad_one(self):
        self.assertIn("steep", self.done("variants", "check", self.write("good.json", SPEC)))
        wrong = self.write("wrong.json", '{"name": "steep",\n "maks": {"causal": true}}')
        self.refused("variants", "check", wrong, says=r"wrong\.json.*maks(.|\n)*mask")
        broken = dict(SPEC, hooks={"logits_transform": "return params.slop * logit;"})
        self.refused("variants", "check", self.write("broken.json", broken), says=r"broken\.json(.|\n)*slop")
        broken = dict(SPEC, hooks={"logits_transform": "return logit + nothing;"})
        self.refused("variants", "check", self.write("broken.json", broken), says=r"broken\.json(.|\n)*nothing")


class Plan(Command):
    def test_json_has_the_fixed_names(self):
        figures = self.figures("plan", "--kv", "64x4096", "--sms", 132)
        for name in ["items", "partials", "max_over_mean", "copy_bytes", "workspace_bytes", "host_us"]:
            self.assertIn(name, figures)
        self.assertGreaterEqual(figures["items"], 1)

    def test_named_batches_are_balanced(self):
        for kv in ["1x131072+255x1024", "zipf:256:65536", "uniform:64:256:16384", "64x4096", "10000x300"]:
            self.assertLessEqual(self.figures("plan", "--kv", kv, "--sms", 132)["max_over_mean"], 1.10, kv)

    def test_svg_and_explain(self):
        picture = self.folder / "work.svg"
        text = self.done("plan", "--kv", "1x131072+255x1024", "--svg", picture, "--explain", 0)
        self.assertRegex(picture.read_text(), r"(?s)^<svg.*<rect.*</svg>\s*$")
        self.assertIn("131072", text)
        self.refused("plan", "--kv", "4x16", "--explain", 4, says="4")

    def test_batch_invariant_cuts_a_request_the_same_in_every_batch(self):
        words = r"They cut 8 of its 8 streams, into 13 pieces each, of 13 to 14 KV tiles"
        for kv in ["1x16384", "1x16384+63x4096"]:
            text = self.done("plan", "--kv", kv, "--batch-invariant", "--explain", 0)
            self.assertRegex(text, words)

    def test_what_is_declared_chooses_the_tiles(self):
        drafts = ["plan", "--qo", "8", "--kv", "32x4096", "--explain", 0]
        self.assertIn("1 query tile of up to 128 rows", self.done(*drafts))
        self.assertIn("1 query tile of up to 64 rows", self.done(*drafts, "--max-qo-len", 8))
        one = ["plan", "--kv", "1x8192", "--max-qo-len", 1]
        self.assertIn("on 264 CTAs", self.done(*one))
        self.assertIn("on 132 CTAs", self.done(*one, "--max-requests", 1))
        self.refused(*drafts, "--max-qo-len", 7, says="8")
        self.refused("plan", "--kv", "3x16", "--max-requests", 2, says="3 requests")
        self.refused("plan", "--max-requests", -1, says="-1")

    def test_shared_prefixes(self):
        picture = self.folder / "shared.svg"
        shared = ["plan", "--kv", "64x21504", "--shared", "64x16384,8x4096"]
        text = self.done(*shared, "--svg", picture, "--explain", 9)
        self.assertIn("shared prefixes 9, levels 2", text)
        self.assertIn("The first 16384 of its keys are read once for 64 query rows, from request 0 on, the next 4096 of its "
                      "keys are read once for 8 query rows, from request 8 on", text)
        self.assertIn('class="prefix"', picture.read_text())
        figures = self.figures(*shared)
        self.assertEqual((figures["prefix_levels"], figures["shared_keys"]), (2, 16384 * 63 + 8 * 4096 * 7))
        self.assertEqual(self.figures("plan", "--kv", "64x21504")["shared_keys"], 0)
        self.refused("plan", "--kv", "4x64", "--shared", "4x128", says="64")
        self.refused("plan", "--kv", "4x64", "--shared", "4x40", says="whole pages")
        self.refused("plan", "--kv", "4x64", "--shared", "4x32", "--page", 0, says="pages")
        self.refused("plan", "--kv", "4x64", "--shared", "4x32", "--batch-invariant", says="exclude")

    def test_nothing_to_do(self):
        self.assertEqual(self.figures("plan", "--kv", "[]", "--qo", "[]")["items"], 0)


class Run(Command):
    def test_verify(self):
        self.figures("verify", "--device", "cpu", "--heads", "4,2,24,56", "--qo", "[1,9]", "--kv", "[40,130]")
        figures = self.figures("verify", "--device", "cpu", "--heads", "4,2,64", "--qo", "3x1", "--kv", "[1,40,130]")
        self.assertEqual(figures["ok"], True)
        self.assertEqual(figures["device"], "cpu")
        self.assertLessEqual(figures["max_error"], figures["tolerance"])

    def test_verify_a_users_file(self):
        self.done("verify", "--device", "cpu", "--variant", self.write("steep.json", SPEC), "--param", "slope=1.5",
                  "--heads", "2,1,64", "--qo", "[5]", "--kv", "[33]", "--page", 0)

    def test_verify_without_softmax(self):
        text = self.done("verify", "--device", "cpu", "--variant", "sigmoid", "--qo", "4x1", "--kv", "[0,1,40,130]")
        self.assertIn("no lse without softmax", text)

    def test_verify_a_composition(self):
        text = self.done("verify", "--device", "cpu", "--variant", "soft_cap+causal", "--param", "cap=20")
        self.assertIn("soft_cap_and_causal on CPU: right", text)
        self.refused("verify", "--variant", "sliding_window+streaming_llm", says="streaming_llm declares a sink")
        self.refused("verify", "--variant", "causal+sofcap", says="soft_cap")
        self.refused("verify", "--variant", "causal+", says='There is no variant ""')
        self.refused("verify", "--variant", "causal+causal", says="a second time")
        self.refused("verify", "--variant", "caus\udcff+x", says="There is no variant")

    def test_verify_random_configurations(self):
        verify = ["verify", "--device", "cpu", "--variant", "causal"]  # built in: no compiler is asked for
        figures = self.figures(*verify, "--random", 25, "--seed", 4)
        self.assertEqual([figures[word] for word in ("ok", "configurations", "right", "attentions", "compositions")],
                         [True, 25, 25, 3, 0])
        self.assertEqual((figures["wrong"], figures["refused"]), ([], []))
        self.assertTrue(0 < figures["worst"] <= 1, figures["worst"])
        self.assertEqual(self.figures(*verify, "--random", 25, "--seed", 4), figures)
        self.assertNotEqual(self.figures(*verify, "--random", 25, "--seed", 5)["worst"], figures["worst"])
        any_variant = self.figures("verify", "--device", "cpu", "--random", 30, "--seed", 1)
        self.assertEqual([any_variant[word] for word in ("ok", "right", "attentions")], [True, 30, 3])
        self.assertGreater(any_variant["compositions"], 0)
        for words in (["--heads", "4,2,64"], ["--page", 1], ["--qo", 3], ["--kv", "[3]"], ["--dtype", "f16"],
                      ["--layout", "HND"], ["--param", "cap=1"], ["--max-qo-len", 1]):
            self.refused(*verify, "--random", 5, *words, says=f"draws what {words[0]} says; leave one of the two out")
        self.refused(*verify, "--random", -1, says="--random is -1; it must be at least 1.")

    def test_demo(self):
        text = self.done("demo", "--device", "cpu")
        self.assertIn("CPU", text)

    def test_cache(self):
        environment = {"HEDDLE_CACHE_DIR": str(self.folder / "cache")}
        self.assertEqual(self.done("cache", "dir", **environment).strip(), environment["HEDDLE_CACHE_DIR"])
        self.done("cache", "list", **environment)
        self.done("cache", "clear", **environment)

    def test_cache_warm_fills_it_ahead_of_time(self):
        environment = {"HEDDLE_CACHE_DIR": str(self.folder / "cache")}
        spec = self.write("steep.json", SPEC)
        configs = self.write("warm.json", [{"variant": str(spec), "heads": [4, 2, 64]}])
        first = self.done("cache", "warm", configs, "--device", "cpu", **environment)
        if "compiled" not in first:
            self.skipTest("no C++ compiler here")
        self.assertIn("disk", self.done("cache", "warm", configs, "--device", "cpu", **environment))

    def test_compile_needs_no_gpu(self):
        result = heddle("compile", "--arch", "sm_80", "--heads", "4,1,64", "--json", self.folder / "figures.json")
        if result.returncode == 2 and "NVRTC" in result.stderr:
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, 0, result.stderr)
        for kernel in json.loads((self.folder / "figures.json").read_text()):
            self.assertEqual(set(kernel), {"kernel", "arch", "ms", "ms_in_vain", "registers", "shared_bytes", "spill_bytes"})
        self.assertIn("heddle_decode", self.done("compile", "--show", "--heads", "4,1,64"))
        self.refused("compile", "--arch", "sm_91", says="sm_90a")

    def test_bench_says_what_it_did_not_run(self):
        result = heddle("bench", "--device", "cpu", "--only", "decode_b1_1k")
        self.assertIn(result.returncode, (0, 2), result.stderr)


    def test_bench_beside_a_run_over_peers(self):
        found = [{"peer": "slow", "us": 9.0}, {"peer": "fast", "us": 8.0}, {"peer": "absent", "error": "not installed"}]
        rows = [{"workload": "decode_b1_1k", **row} for row in found]
        peers = self.write("peers.json", {"device": "GPU", "ceilings": {}, "rows": rows})
        row = self.figures("bench", "--device", "cpu", "--only", "decode_b1_1k", "--beside", peers)["rows"][0]
        self.assertEqual(row["best_peer"], "fast")
        self.assertIn("of_best_peer", row)
        self.refused("bench", "--device", "cpu", "--beside", self.write("list.json", []), says="list.json has no list")

    def workloads(self, *rows):
        shape = {"kind": "decode", "qo": "3x1", "kv": [1, 40, 300], "heads": [4, 2, 64], "page": 16}
        return self.write("workloads.json", {"workloads": [{"name": f"row{i}", **shape, **row} for i, row in enumerate(rows)]})

    def test_bench_sets_variants_beside_plain_softmax(self):
        file = self.workloads({}, {"dtype": "f16"}, {"soft_cap": 30}, {"variant": "sigmoid", "params": {"bias": -3}},
                              {"variant": "gemma2", "params": {"window": 31}}, {"kind": "append", "causal": True})
        rows = self.figures("bench", "--device", "cpu", "--workloads", file)["rows"]
        self.assertEqual([row.get("plain") for row in rows], [None, None, "row0", "row0", "row0", None])
        self.assertGreater(rows[3]["of_plain"], 0)

    def test_bench_tables_run_where_only_names_them(self):
        shape = {"kind": "decode", "qo": "8x1", "kv": "8x300", "heads": [4, 2, 64], "page": 16}
        shared = {**shape, "shared": [[8, 128], [2, 64]]}
        sparse = {**shape, "kind": "append", "qo": "4x64", "kv": "4x128", "page": 64}
        file = self.write("tables.json", {"workloads": [{"name": "plain", **shape}], "tables": {
            "shared": [{"name": "flat", **shared}, {"name": "once", **shared, "share_prefixes": True, "beside": "flat"}],
            "sparse": [{"name": "dense", **sparse, "qo": [256], "kv": [256]},
                       {"name": "half", **sparse, "pool": 256, "beside": "dense"},
                       {"name": "composed", **sparse, "compose": ["causal", "alibi"], "beside": "dense"}]}})
        rows = self.figures("bench", "--device", "cpu", "--workloads", file)["rows"]
        self.assertEqual([row["workload"] for row in rows], ["plain"])
        rows = self.figures("bench", "--device", "cpu", "--workloads", file, "--only", "shared,sparse")["rows"]
        self.assertEqual([row.get("beside") for row in rows], [None, "flat", None, "dense", "dense"])
        self.assertTrue(all("us" in row for row in rows), rows)
        self.assertEqual((rows[1]["of_work"], rows[3]["of_work"]), (1, 0.5))
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"beside": "rwo0"}), says="row0")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"shared": [[2, 40]]}), says="whole pages")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"shared": [[2, 16], [3, 16]]}), says="divide")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"pool": 160}), says="300")

    def test_given_ranges(self):
        file = self.workloads({"kind": "append", "qo": [5, 1, 70], "compose": ["causal", "key_ranges"], "documents": 50},
                              {"variant": "key_ranges", "prefix": 20}, {"compose": ["soft_cap", "key_ranges"], "documents": 64})
        rows = self.figures("bench", "--device", "cpu", "--workloads", file)["rows"]
        self.assertTrue(all("us" in row for row in rows), rows)
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"variant": "key_ranges"}), says="say which")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"documents": 5}), says="only a variant")
        for words in (("--qo", "[1,70,3]", "--kv", "[300,90,50]"), ("--qo", "200", "--kv", "[200]", "--page", 0)):
            self.assertTrue(self.figures("verify", "--device", "cpu", "--variant", "causal+key_ranges", *words)["ok"])
        self.refused("plan", "--variant", "causal+key_ranges",
                     says="each row's range of keys given with the batch .*; heddle plan takes lengths alone")
        self.refused("verify", "--device", "cpu", "--variant", "streaming_llm+key_ranges", says="leave one of the two out")
        self.assertIn("boundary tiles of the declared mask (rows = given)", self.done("variants", "show", "key_ranges"))

    def test_bench_batch_invariant(self):
        file = self.workloads({}, {"batch_invariant": True}, {"kind": "append", "qo": [5, 1, 70], "causal": True})
        rows = self.figures("bench", "--device", "cpu", "--workloads", file)["rows"]
        self.assertEqual([row.get("batch_invariant") for row in rows], [None, True, None])
        rows = self.figures("bench", "--device", "cpu", "--workloads", file, "--batch-invariant")["rows"]
        self.assertEqual([row["batch_invariant"] for row in rows], [True] * 3)
        self.assertTrue(all("us" in row for row in rows), rows)
        figures = self.figures("bench", "--device", "cpu", "--growth", "--growth-keys", 256, "--batch-invariant")
        self.assertEqual([row["batch_invariant"] for row in figures["growth"][1]["rows"]], [True] * 2)
        self.assertIn("batch_invariant", self.done("bench", "--help"))
        self.refused("bench", "--device", "cpu", "--host", "--batch-invariant", says="without it")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"batch_invariant": 1}), says="wrong type")

    def test_bench_growth(self):
        figures = self.figures("bench", "--device", "cpu", "--growth", "--growth-keys", 2048)
        self.assertEqual(figures["rows"], [])
        batch, kv_len = figures["growth"]
        self.assertEqual([row["batch"] for row in batch["rows"]], [1])
        self.assertEqual([row["kv_len"] for row in kv_len["rows"]], [128, 256, 512, 1024, 2048])
        self.assertGreater(kv_len["line"]["TBps"], 0)
        for row in kv_len["rows"]:
            self.assertGreater(row["of_line"], 0)
            self.assertIn("is_step", row)

    def test_bench_host_and_graph_maxima(self):
        figures = self.figures("bench", "--device", "cpu", "--host", "--graph-maxima")
        self.assertIn("GPU", figures["graph_maxima"]["error"])
        costs = {row["cost"]: row for row in figures["host"]}
        for cost in ["plan_64", "planner_64", "plan_256", "plan_10000", "run", "run_gemma2_params", "attention_memory"]:
            self.assertGreater(costs[cost]["us"], 0, cost)
        for cost in ["memory_hit", "disk_hit", "attention_disk", "compile_cold"]:
            self.assertTrue("us" in costs[cost] or "error" in costs[cost], cost)

    def test_bench_append(self):
        rows = self.figures("bench", "--device", "cpu", "--append")["append"]["rows"]
        self.assertEqual([row["row"] for row in rows],
                         ["append_kv_8k", "append_kv_64", "append_kv_8k_rope", "append_kv_64_rope"])
        self.assertTrue(all(row["us"] > 0 for row in rows), rows)
        self.refused("bench", "--device", "cpu", "--append", "--batch-invariant", says="without it")

    def test_cache_warms_append_kv(self):
        config = {"variant": "causal", "heads": [8, 2, 64], "append_kv": "transform"}
        file = self.write("configs.json", [config])
        self.refused("cache", "warm", file, "--device", "cpu", says="neither a key_transform nor a value_transform")
        file = self.write("configs.json", [{**config, "append_kv": "both"}])
        self.refused("cache", "warm", file, "--device", "cpu", says='append_kv is "both"; it may be none, copy or transform')

    def test_bench_mistakes_are_sentences(self):
        self.refused("bench", "--device", "cpu", "--grwth", says="`--growth`")
        self.refused("bench", "--device", "cpu", "--growth", "--growth-keys", 5, says="at least 128")
        self.refused("bench", "--device", "cpu", "--growth-keys", 512, says="give --growth too")
        self.refused("bench", "--device", "cpu", "--only", "decod_", says="decod_")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"variant": "gema2"}), says="gemma2")
        self.refused("bench", "--device", "cpu", "--workloads", self.workloads({"variant": "soft_cap", "params": {"cp": 3}}),
                     says="cap")


class MockGpu(Command):
    """The command on a driver that runs no kernel: every result is wrong, and must be called so."""

    def setUp(self):
        super().setUp()
        if not MOCKS:
            self.skipTest("no mock driver was named")
        for name, library in zip(["libcuda.so.1", "libcublas.so.13", "libcublasLt.so.13"], [*MOCKS, MOCKS[1]]):
            (self.folder / name).symlink_to(library)
        self.gpu = {"LD_LIBRARY_PATH": f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}", "MOCK_CUDA": "quiet",
                    "HEDDLE_CACHE_DIR": str(self.folder / "cache")}

    def figures(self, *words, **environment):
        """Of a run that ends with 1; skips where nothing can be compiled."""
        path = self.folder / "figures.json"
        result = heddle(*words, "--device", "cuda", "--json", path, **self.gpu, **environment)
        if "NVRTC" in result.stderr:
            self.skipTest("no NVRTC here")
        self.assertEqual((result.returncode, result.stderr), (1, ""), result.stdout)
        self.said = result.stdout
        return json.loads(path.read_text())

    def test_demo_says_which_steps_are_wrong(self):
        figures = self.figures("demo")
        self.assertEqual((figures["ok"], figures["device"]), (False, "Mock H200"))
        self.assertEqual([step["ok"] for step in figures["steps"]], [step["requests"] == 0 for step in figures["steps"]])
        self.assertRegex(self.said, r"device +Mock H200 \(sm_90a\)")
        self.assertIn("11 steps x 4 layers, with wrong results\nthe one graph has 3 nodes", self.said)

    def test_verify_says_that_it_is_wrong(self):
        figures = self.figures("verify", "--qo", "2x1", "--kv", "2x40", "--max-qo-len", 1)
        self.assertEqual((figures["ok"], figures["device"]), (False, "cuda"))

    def test_verify_says_how_to_run_what_is_wrong_alone(self):
        figures = self.figures("verify", "--variant", "causal", "--random", 3)
        said = self.said
        self.assertTrue(figures["wrong"])
        for wrong in figures["wrong"]:
            command = wrong["command"]
            self.assertIn(f"{wrong['problem']}\n  {command}\n", said)
            self.assertRegex(command, r"^heddle verify --variant causal --heads [\d,]+ --page \d+ --dtype \w+ --layout \w+ "
                                      r"--qo '\[[\d,]+\]' --kv '\[[\d,]+\]'( --\S+( \d+)?)* --seed \d+$")
            alone = self.figures(*shlex.split(command)[1:])
            self.assertEqual((alone["ok"], alone["seed"]), (False, int(command.split()[-1])))

    def test_bench_times_nothing_that_is_wrong(self):
        shape = {"kind": "decode", "qo": "2x1", "kv": "2x64", "heads": [4, 2, 64], "page": 16}
        file = self.write("workloads.json", {"workloads": [{"name": "w", **shape}]})
        figures = self.figures("bench", "--workloads", file, "--append", "--graph-maxima", "--host")
        # The mock's events are 1.5 ms apart: 4 GiB twice, and six products of 8192.
        self.assertAlmostEqual(figures["ceilings"]["read_TBps"], 2 * 2**32 / 1.5e-3 / 1e12, delta=0.01)
        self.assertAlmostEqual(figures["ceilings"]["matmul_TFLOPs"], 6 * 2 * 8192**3 / 1.5e-3 / 1e12, delta=1)
        self.assertRegex(figures["rows"][0]["error"], "wrong")
        self.assertNotIn("us", figures["rows"][0])
        self.assertRegex(figures["graph_maxima"]["error"], "^with maxima of 8 requests a wrong")
        self.assertAlmostEqual(figures["append"]["copy_TBps"], 2 * 2 * 2**30 / 1.5e-3 / 1e12, delta=0.01)
        for row in figures["append"]["rows"]:
            self.assertRegex(row["error"], "is not what its page holds", row)
        costs = {row["cost"]: row for row in figures["host"]}
        for cost in ["plan_64", "run", "run_gemma2_params", "attention_disk", "memory_hit", "disk_hit", "compile_cold"]:
            self.assertGreater(costs[cost]["us"], 0, cost)

    def test_bench_says_why_a_ceiling_is_missing(self):
        file = self.write("workloads.json", {"workloads": [
            {"name": "w", "kind": "mla", "qo": "2x1", "kv": "2x64", "heads": [4, 2, 64], "page": 16},
            {"name": "x", "kind": "decode", "qo": [], "kv": [], "heads": [4, 2, 64], "page": 16}]})
        figures = self.figures("bench", "--workloads", file, MOCK_CUBLAS="13")
        self.assertIsNone(figures["ceilings"]["matmul_TFLOPs"])
        self.assertIn("cublasGemmEx answered 13 where 0 means success.", self.said)
        self.assertEqual([row["error"] for row in figures["rows"]], ["MLA has no pipeline yet", "it has no request"])

    def test_cache_warms_what_a_second_run_finds(self):
        file = self.write("configs.json", [{"variant": "softmax", "heads": [4, 2, 64], "max_qo_len": 1}])
        first = heddle("cache", "warm", file, "--device", "cuda", **self.gpu)
        if "NVRTC" in first.stderr:
            self.skipTest("no NVRTC here")
        self.assertRegex(first.stdout, "decode for sm_90a: compiled")
        for words in (["--device", "cuda"], ["--arch", "sm_90a"]):
            self.assertRegex(heddle("cache", "warm", file, *words, **self.gpu).stdout, "decode for sm_90a: disk")
        path = self.folder / "figures.json"
        listed = self.done("cache", "list", "--json", path, **self.gpu)
        self.assertIn("1 kernels", listed)
        self.assertEqual([(row["arch"], row["bytes"] > 0) for row in json.loads(path.read_text())], [("sm_90a", True)])
        self.assertIn("1 kernels removed", self.done("cache", "clear", **self.gpu))

    def test_a_driver_that_fails_is_a_sentence(self):
        result = heddle("verify", "--device", "cuda", **{**self.gpu, "MOCK_CUDA": "cuMemAlloc=2"})
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"^heddle: .*(CUDA_ERROR_OUT_OF_MEMORY|NVRTC)")
        self.assertIn("CPU: the CUDA driver finds no device", self.done("demo", **{**self.gpu, "MOCK_CUDA": "no_device"}))


class Terminal(Command):
    def test_progress_is_shown_on_a_terminal_and_wiped(self):
        ours, theirs = pty.openpty()
        subprocess.run([HEDDLE, "bench", "--device", "cpu", "--growth", "--growth-keys", "128"], stdout=subprocess.PIPE,
                       stderr=theirs, check=True, timeout=600)
        os.close(theirs)
        shown = os.read(ours, 4096).decode()
        os.close(ours)
        self.assertRegex(shown, r"\[2/2\] ")
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown))


class Readme(Command):
    def test_the_examples_compile(self):
        codes = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        self.assertEqual(len(codes), 2)
        for code in codes:
            example = self.write("example.cc", code)
            result = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-I", str(ROOT), str(example)],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLessEqual(len(code.splitlines()), 30)


if __name__ == "__main__":
    HEDDLE = sys.argv.pop(1)
    MOCKS = [sys.argv.pop(1) for word in sys.argv[1:3] if word.endswith(".so")]
    unittest.main()
