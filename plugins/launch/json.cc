#include "json.h"

#include <cstdlib>
#include <locale>
#include <sstream>

#include "failure.h"

namespace kvedge::launch {
namespace {

constexpr int kDeepest = 32;  // so that no document exhausts the stack

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json document() {
    Json value = any(0);
    skip_space();
    if (at_ != text_.size()) fail("the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string got = at_ < text_.size() ? "'" + std::string(text_.substr(at_, 8)) + "'" : "the end";
    throw Failure(where_, "JSON with " + expected + " at byte " + std::to_string(at_), got);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool take(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void need(char wanted) {
    if (!take(wanted)) fail(std::string("'") + wanted + "'");
  }

  Json any(int depth) {
    if (depth > kDeepest) fail("fewer levels");
    skip_space();
    if (at_ >= text_.size()) fail("a value");
    if (text_[at_] == '{') return object(depth);
    if (text_[at_] == '[') return list(depth);
    if (text_[at_] == '"') return made(Json::Kind::kText, 0, string());
    if (word("true")) return made(Json::Kind::kBool, 1, "");
    if (word("false")) return made(Json::Kind::kBool, 0, "");
    if (word("null")) return Json();
    return number();
  }

  static Json made(Json::Kind kind, double number, std::string text) {
    Json value;
    value.kind = kind;
    value.number = number;
    value.text = std::move(text);
    return value;
  }

  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  Json number() {
    const size_t end = text_.find_first_not_of("+-.0123456789eE", at_);
    const std::string digits(text_.substr(at_, end == std::string_view::npos ? end : end - at_));
    std::istringstream stream(digits);
    stream.imbue(std::locale::classic());  // whatever the process takes for a decimal point
    double value = 0;
    if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof()) fail("a value");
    at_ += digits.size();
    return made(Json::Kind::kNumber, value, "");
  }

  Json list(int depth) {
    Json value = made(Json::Kind::kList, 0, "");
    need('[');
    if (take(']')) return value;
    do value.items.push_back(any(depth + 1));
    while (take(','));
    need(']');
    return value;
  }

  Json object(int depth) {
    Json value = made(Json::Kind::kObject, 0, "");
    need('{');
    if (take('}')) return value;
    do {
      skip_space();
      std::string name = string();
      need(':');
      value.members[std::move(name)] = any(depth + 1);
    } while (take(','));
    need('}');
    return value;
  }

  std::string string() {
    std::string out;
    need('"');
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      if (c == '\\') escaped(&out);
      else out += c;
    }
    if (at_ >= text_.size()) fail("'\"'");
    ++at_;
    return out;
  }

  void escaped(std::string* out) {
    if (at_ >= text_.size()) fail("an escaped character");
    const char c = text_[at_++];
    const size_t simple = std::string_view("\"\\/bfnrt").find(c);
    if (simple != std::string_view::npos) {
      *out += "\"\\/\b\f\n\r\t"[simple];
    } else if (c == 'u') {
      utf8(code_point(), out);
    } else {
      --at_;
      fail("an escaped character");
    }
  }

  unsigned code_point() {
    const std::string digits(text_.substr(at_, 4));
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      fail("four hexadecimal digits");
    }
    at_ += 4;
    return static_cast<unsigned>(std::strtoul(digits.c_str(), nullptr, 16));
  }

  // Halves of a pair beyond 16 bits stay apart: no name that is read here has any.
  static void utf8(unsigned code, std::string* out) {
    if (code < 0x80) {
      *out += static_cast<char>(code);
      return;
    }
    if (code < 0x800) {
      *out += static_cast<char>(0xC0 | code >> 6);
    } else {
      *out += static_cast<char>(0xE0 | code >> 12);
      *out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    }
    *out += static_cast<char>(0x80 | (code & 0x3F));
  }

  std::string_view text_;
  std::string where_;
  size_t at_ = 0;
};

}  // namespace

const Json& Json::at(const std::string& name, Kind wanted, const std::string& where) const {
  const auto found = members.find(name);
  if (found == members.end()) throw Failure(where, "'" + name + "'", "none");
  if (found->second.kind != wanted) throw Failure(where, "'" + name + "' of another kind", "it");
  return found->second;
}

double Json::number_at(const std::string& name, const std::string& where) const {
  return at(name, Kind::kNumber, where).number;
}

const std::string& Json::text_at(const std::string& name, const std::string& where) const {
  return at(name, Kind::kText, where).text;
}

Json parse_json(std::string_view text, const std::string& where) { return Parser(text, where).document(); }

}  // namespace kvedge::launch
