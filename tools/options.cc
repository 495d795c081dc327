#include "tools/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "planner/lengths.h"
#include "variants/nearest.h"

namespace heddle::tools {

struct Options::State {
  std::string verb;
  CLI::App app;
  State(const std::string& name, const std::string& about)
      : verb(name), app(about, "heddle " + name) {}
};

Options::Options(const std::string& verb, const std::string& about)
    : state_(std::make_unique<State>(verb, about)) {}

Options::~Options() = default;

void Options::text(std::string& value, const std::string& flag, const std::string& help) {
  state_->app.add_option(flag, value, help)->capture_default_str();
}

void Options::number(int& value, const std::string& flag, const std::string& help) {
  state_->app.add_option(flag, value, help)->capture_default_str();
}

void Options::number(std::uint64_t& value, const std::string& flag, const std::string& help) {
  state_->app.add_option(flag, value, help)->capture_default_str();
}

void Options::flag(bool& value, const std::string& flag, const std::string& help) {
  state_->app.add_flag(flag, value, help);
}

void Options::texts(std::vector<std::string>& values, const std::string& flag,
                    const std::string& help) {
  CLI::Option* option = state_->app.add_option(flag, values, help);
  if (!values.empty()) option->capture_default_str();
}

bool Options::parse(std::vector<std::string> arguments) {
  CLI::App& app = state_->app;
  const std::vector<std::string> given = arguments;
  const std::string help_words =
      fmt::format("`heddle {} --help` tells what it takes", state_->verb);
  try {
    app.parse(
        std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 pops the back
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ExtrasError& error) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_name().starts_with("--")) known.push_back(option->get_name());
    }
    for (const std::string& word : given) {
      if (word.rfind("--", 0) != 0 || app.get_option_no_throw(word.substr(0, word.find('='))))
        continue;
      fail(ErrorKind::invalid_argument, "heddle {} has no option `{}`; did you mean `{}`? {}.",
           state_->verb, word, nearest(word, known), help_words);
    }
    fail(ErrorKind::invalid_argument, "heddle {}: {}; {}.", state_->verb, error.what(), help_words);
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::invalid_argument, "heddle {}: {}; {}.", state_->verb, error.what(), help_words);
  }
  return true;
}

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

int positive(const std::string& text, const std::string& whole) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value <= 0) {
    fail(ErrorKind::invalid_argument,
         "--heads `{}` holds `{}`, which is not a whole number above zero; write query heads, KV "
         "heads "
         "and head_dim, as in 32,8,128.",
         whole, text);
  }
  return value;
}

}  // namespace

Heads parse_heads(const std::string& text) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.size() != 3 && parts.size() != 4) {
    fail(ErrorKind::invalid_argument,
         "--heads `{}` has {} numbers; it takes three, query heads, KV heads and head_dim, as in "
         "32,8,128, or four with head_dim_vo, as in 32,8,192,128.",
         text, parts.size());
  }
  const Heads heads{positive(parts[0], text), positive(parts[1], text), positive(parts[2], text),
                    parts.size() == 4 ? positive(parts[3], text) : 0};
  if (heads.num_qo_heads % heads.num_kv_heads != 0) {
    fail(ErrorKind::invalid_argument,
         "--heads `{}` has {} query heads for {} KV heads; the first must be a multiple of the "
         "second.",
         text, heads.num_qo_heads, heads.num_kv_heads);
  }
  return heads;
}

DType parse_dtype(const std::string& text) {
  if (text == "bf16") return DType::bf16;
  if (text == "f16") return DType::f16;
  fail(ErrorKind::invalid_argument,
       "--dtype `{}` is not an element type of q, k and v; it is bf16 or f16.", text);
}

DeviceKind parse_device(const std::string& text) {
  if (text == "auto") return DeviceKind::automatic;
  if (text == "cuda") return DeviceKind::cuda;
  if (text == "cpu") return DeviceKind::cpu;
  fail(ErrorKind::invalid_argument, "--device `{}` is not a device; it is auto, cuda or cpu.",
       text);
}

KvLayout parse_layout(const std::string& text) {
  if (text == "NHD") return KvLayout::NHD;
  if (text == "HND") return KvLayout::HND;
  fail(ErrorKind::invalid_argument, "--layout `{}` is not a layout of K/V pages; it is NHD or HND.",
       text);
}

ParamValues parse_params(const std::vector<std::string>& texts) {
  ParamValues values;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    const std::string number = equals == std::string::npos ? "" : text.substr(equals + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (equals == 0 || number.empty() || *end != '\0') {
      fail(ErrorKind::invalid_argument,
           "--param `{}` is not a name and a number; write it as in cap=30.", text);
    }
    values[text.substr(0, equals)] = value;
  }
  return values;
}

std::vector<std::int32_t> parse_qo_lengths(const std::string& text, std::size_t num_requests) {
  // A bare number is the one length that serves all requests.
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  std::vector<std::int32_t> lens = parse_lengths(is_number ? "1x" + text : text);
  if (lens.size() == 1) lens.assign(num_requests, lens[0]);
  if (lens.size() != num_requests) {
    fail(ErrorKind::invalid_argument,
         "--qo has {} lengths where --kv has {}; give one of each a request, or one for all.",
         lens.size(), num_requests);
  }
  return lens;
}

void check_at_least(int value, int least, const std::string& flag) {
  if (value < least)
    fail(ErrorKind::invalid_argument, "{} is {}; it must be at least {}.", flag, value, least);
}

std::string composition(Engine& engine, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) (void)engine.variants().at(part);  // its own sentence where there is none
  const std::string name = fmt::format("{}", fmt::join(parts, "_and_"));
  const std::vector<std::string> known = engine.variants().names();
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  const nlohmann::json spec{{"name", name}, {"compose", parts}};
  engine.register_variant(Variant::from_json(spec.dump(), fmt::format("{}", fmt::join(parts, "+")), engine.variants()));
  return name;
}

std::string resolve_variant(Engine& engine, const std::string& name_or_file) {
  const bool is_file =
      name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".json");
  if (!is_file && name_or_file.find('+') != std::string::npos) return composition(engine, split(name_or_file, '+'));
  if (!is_file) return engine.variants().at(name_or_file).name;
  const Variant variant = Variant::from_file(name_or_file, engine.variants());
  engine.register_variant(variant);
  return variant.name;
}

}  // namespace heddle::tools
