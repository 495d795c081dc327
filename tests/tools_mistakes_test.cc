// The forty mistakes that a new user is most likely to make, in C++ and on the command line, and the
// whole sentence that each one gets.
#include <fmt/format.h>

#include "tests/case_run.h"
#include "tests/catch.h"
#include "tests/engine_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

// Somebody with a config, a batch of two requests and tensors for them.
struct User {
  Engine engine = cpu_engine();
  CaseRun run{engine, {.config = shape_of("sliding_window", 8, 2, 64, 16), .qo_lens = {1, 3}, .kv_lens = {40, 20}}};

  Attention make(const std::function<void(AttentionConfig&)>& change) {
    AttentionConfig config = run.attention.config();
    change(config);
    return engine.attention(config);
  }
  void plan(const std::function<void(Batch&)>& change) {
    Batch batch = run.problem.batch();
    change(batch);
    run.attention.plan(batch, run.workspace);
  }
  void launch(const std::function<void(Tensors&)>& change, const ParamValues& params = {}) {
    run.plan();
    Tensors tensors = run.problem.tensors();
    change(tensors);
    run.attention.run(run.workspace, tensors, params);
  }
  void add(const std::string& json) { add_spec(engine, json); }
};

struct Mistake {
  void (*make)(User&);
  const char* sentence;
};

// The spans of a Batch need arrays that stay.
const std::vector<std::int32_t> kTwo{0, 1}, kLong{0, 1, 99}, kBack{0, 3, 1}, kFull{16, 17}, kLens{40, 20};

// clang-format off
const Mistake kMistakes[] = {
    // The config.
    {[](User& u) { u.engine.attention({}); }, "num_qo_heads is 0; it must be at least 1."},
    {[](User& u) { u.make([](auto& c) { c.variant = "sliding-window"; }); },
     "There is no variant \"sliding-window\"; the nearest valid one is sliding_window (allowed: NAMES)."},
    {[](User& u) { u.make([](auto& c) { c.num_kv_heads = 3; }); }, "num_qo_heads 8 is not a multiple of num_kv_heads 3."},
    {[](User& u) { u.make([](auto& c) { c.head_dim = 100; }); }, "head_dim 100 is not supported; it must be a multiple of 8 up to 256."},
    {[](User& u) { u.make([](auto& c) { c.q_dtype = DType::f16; }); }, "q_dtype f16 and kv_dtype bf16 differ; they must be equal."},
    {[](User& u) { u.make([](auto& c) { c.kv_dtype = DType::u8; }); }, "dtype u8 is not supported for q, k and v; bf16 and f16 are."},
    {[](User& u) { u.make([](auto& c) { c.constants = {{"window", 64}}; }); },
     "Param \"window\" of variant sliding_window is not a constant; give it to plan() and run()."},
    // The spec.
    {[](User& u) { u.add("{\"name\": \"mine\",}"); },
     "test.json, line 1, column 17: syntax error while parsing object key - unexpected '}'; expected string literal; the text must be one JSON object."},
    {[](User& u) { u.add(R"({"name": "mine", "hooks": {"logit_transform": "return logit;"}})"); },
     "test.json, line 1: /hooks/logit_transform is not a key of the hooks; the nearest valid one is logits_transform (allowed: query_transform, "
     "key_transform, value_transform, logits_transform, logits_mask, output_transform, initial_state)."},
    {[](User& u) { u.add(R"({"name": "mine", "hooks": {"logits_transform": "2 * logit;"}})"); },
     "test.json, line 1: /hooks/logits_transform has no return; a hook is the body of a function that returns a float."},
    {[](User& u) { u.add(R"({"name": "mine", "params": {"cap": {"type": "float"}}})"); },
     "test.json, line 1: /params/cap/type is \"float\", which is not a param's type; the nearest valid one is f32 (allowed: f32, i32)."},
    {[](User& u) { u.add(R"({"name": "mine", "mask": {"window_left": "window"}})"); },
     "test.json, line 1: /mask/window_left is \"window\", which is not among the spec's params; none are declared."},
    // The workspace and the batch.
    {[](User& u) { Workspace none; u.run.attention.plan(u.run.problem.batch(), none); }, "The Workspace is empty; make one with Attention::workspace()."},
    {[](User& u) { u.run.run(u.run.problem.tensors()); }, "run() was called before plan() on this Workspace."},
    {[](User& u) { Attention other = u.make([](auto& c) { c.head_dim = 128; }); other.plan(u.run.problem.batch(), u.run.workspace); },
     "The Workspace was made by another Attention; their tiles and sizes differ."},
    {[](User& u) { u.plan([](Batch& b) { b.kv_indptr = kTwo; }); }, "kv_indptr has 2 entries; a batch of 2 requests (as qo_indptr says) needs 3."},
    {[](User& u) { u.plan([](Batch& b) { b.qo_indptr = kBack; }); }, "Request 1: qo_indptr decreases from 3 to 1; it must never decrease."},
    {[](User& u) { u.plan([](Batch& b) { b.qo_indptr = kLong; }); },
     "Request 1: its 98 query rows bring the batch to 99; this workspace was made for max_qo_rows = 4."},
    {[](User& u) { u.plan([](Batch& b) { b.last_page_len = kFull; }); },
     "Request 1: last_page_len is 17; with 2 pages of 16 keys it must be from 1 to 16."},
    {[](User& u) { u.plan([](Batch& b) { b.kv_lens = kLens, b.kv_table_stride = 8; }); },
     "The batch mixes kv_indptr or last_page_len with kv_table_stride or kv_lens; give pages either as CSR (kv_indptr and last_page_len) or as a "
     "dense table (kv_table_stride and kv_lens)."},
    // The run.
    {[](User& u) { u.launch([](Tensors&) {}, {{"window", 64}}); },
     "run() got params for window_left 64, window_right none, sink 0, but the plan was made for window_left 4096, window_right none, sink 0; plan again."},
    {[](User& u) { u.launch([](Tensors&) {}, {{"windw", 64}}); },
     "The variant sliding_window has no param \"windw\"; the nearest valid one is window (allowed: window)."},
    {[](User& u) { u.launch([](Tensors& t) { t.kv_indices = nullptr; }); }, "The plan reaches 5 page ids, but kv_indices was not given."},
    {[](User& u) { u.launch([](Tensors& t) { t.layout = KvLayout::HND; }); }, "Tensor k has page_size = 2; it needs 16."},
    {[](User& u) { u.launch([](Tensors& t) { t.q.dtype = DType::f16; }); }, "Tensor q holds f16; this Attention was made for bf16."},
};
// clang-format on

struct CommandMistake {
  const char* words;
  const char* sentence;
};
// clang-format off
const CommandMistake kCommandMistakes[] = {
    {"verfy", "`verfy` is not a verb of heddle; did you mean `verify`? The verbs are demo, verify, variants, compile, plan, bench, cache."},
    {"plan --kvs 64x4096", "heddle plan has no option `--kvs`; did you mean `--kv`? `heddle plan --help` tells what it takes."},
    {"plan --kv 64,4096",
     "The lengths '64,4096' are not of the form COUNTxLENGTH (2 parts, found 1); lengths are written as [1,2,3], 64x4096, 1x131072+255x1024, "
     "zipf:256:65536 or uniform:64:256:16384."},
    {"plan --heads 32,128", "--heads `32,128` has 2 numbers; it takes three, query heads, KV heads and head_dim, as in 32,8,128, or four with head_dim_vo, as in 32,8,192,128."},
    {"verify --heads 32,8,512", "head_dim 512 is not supported; it must be a multiple of 8 up to 256."},
    {"verify --variant softcap", "There is no variant \"softcap\"; the nearest valid one is soft_cap (allowed: NAMES)."},
    {"verify --variant mine.json", "The spec mine.json cannot be opened: No such file or directory."},
    {"verify --variant soft_cap --param cap 30", "--param `cap` is not a name and a number; write it as in cap=30."},
    {"verify --param cap=30", "The variant softmax has no param \"cap\"; none are declared."},
    {"verify --dtype float16", "--dtype `float16` is not an element type of q, k and v; it is bf16 or f16."},
    {"verify --device gpu", "--device `gpu` is not a device; it is auto, cuda or cpu."},
    {"verify --qo 2x1 --kv 3x40", "--qo has 2 lengths where --kv has 3; give one of each a request, or one for all."},
    {"compile --arch h100", "Architecture \"h100\" is not known; known are sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_103a, sm_120."},
    {"plan --explain 99", "The plan has no request 99; it has 64 of them, counted from 0."},
    {"cache warm", "heddle cache warm needs a file with a list of configurations."},
};
// clang-format on
static_assert(std::size(kMistakes) + std::size(kCommandMistakes) == 40);

std::string filled_in(std::string sentence) {
  if (const std::size_t at = sentence.find("NAMES"); at != std::string::npos)
    sentence.replace(at, 5, fmt::format("{}", fmt::join(VariantRegistry().names(), ", ")));
  return sentence;
}

// What a command writes to stderr, and its exit code.
std::pair<std::string, int> said_by(const std::string& words) {
  FILE* pipe = popen((std::string(HEDDLE_COMMAND " ") + words + " 2>&1 >/dev/null").c_str(), "r");
  std::string text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += char(c);
  return {text, WEXITSTATUS(pclose(pipe))};
}

}  // namespace

TEST_CASE("mistakes in C++ get a sentence each, and the engine goes on", "[tools][mistakes]") {
  for (const Mistake& mistake : kMistakes) {
    User user;
    CHECK(sentence_of([&] { mistake.make(user); }) == filled_in(mistake.sentence));
    CHECK(user.run.judge() == "");
  }
}

TEST_CASE("mistakes on the command line get a sentence each", "[tools][mistakes]") {
  for (const CommandMistake& mistake : kCommandMistakes) {
    INFO(mistake.words);
    const auto [said, code] = said_by(mistake.words);
    CHECK(said == "heddle: " + filled_in(mistake.sentence) + "\n");
    CHECK(code == 2);
  }
}

TEST_CASE("one query length serves all requests, with or without a count", "[tools][mistakes]") {
  CHECK(said_by("plan --qo 2 --kv 3x40") == std::pair(std::string(), 0));
  CHECK(said_by("plan --qo [2] --kv 3x40") == std::pair(std::string(), 0));
}
