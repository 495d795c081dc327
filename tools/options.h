// What a verb takes on the command line. Wraps CLI11, which only options.cc includes (it is slow
// to compile), and turns its complaints into sentences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace heddle::tools {

class Options {
 public:
  // `verb` as the user writes it: "cache warm".
  Options(const std::string& verb, const std::string& about);
  ~Options();

  // The variable keeps its value where the option is not given; that value is shown by --help.
  void text(std::string& value, const std::string& flag, const std::string& help);
  void number(int& value, const std::string& flag, const std::string& help);
  void number(std::uint64_t& value, const std::string& flag, const std::string& help);
  void flag(bool& value, const std::string& flag, const std::string& help);
  void texts(std::vector<std::string>& values, const std::string& flag, const std::string& help);

  // False: --help was asked for and printed. Throws Error on anything that it does not know.
  bool parse(std::vector<std::string> arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "32,8,128": query heads, KV heads, head_dim; "32,8,192,128" where that of v and o is another.
struct Heads {
  int num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;
  int head_dim_vo = 0;  // 0: head_dim
  int vo_dim() const { return head_dim_vo != 0 ? head_dim_vo : head_dim; }
};
inline constexpr const char* kHeadsHelp = "query heads, KV heads, head_dim, and head_dim_vo where that differs";
Heads parse_heads(const std::string& text);

DType parse_dtype(const std::string& text);                       // bf16 | f16
DeviceKind parse_device(const std::string& text);                 // auto | cuda | cpu
KvLayout parse_layout(const std::string& text);                   // NHD | HND
ParamValues parse_params(const std::vector<std::string>& texts);  // cap=30 window=128

// What --qo says for that many KV lengths: one of each a request, or one for all.
std::vector<std::int32_t> parse_qo_lengths(const std::string& text, std::size_t num_requests);

// Refuses a number below `least`.
void check_at_least(int value, int least, const std::string& flag);

// A registered name, several with `+` between them (their composition, "soft_cap+causal"), or a file (anything with a
// `/` or ending in .json); the last two are registered first. Returns the variant's name.
std::string resolve_variant(Engine& engine, const std::string& name_or_file);

// Registers the composition of these variants, unless it is; returns its name, "soft_cap_and_causal". Error where they
// may not stand together.
std::string composition(Engine& engine, const std::vector<std::string>& parts);

}  // namespace heddle::tools
