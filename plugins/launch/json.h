// Reads a JSON document: the header of a safetensors file, and what stands in its metadata.
#ifndef KVEDGE_LAUNCH_JSON_H
#define KVEDGE_LAUNCH_JSON_H

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvedge::launch {

struct Json {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kObject };

  Kind kind = Kind::kNull;
  double number = 0;  // of kBool too: 0 or 1
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> members;

  // Throw Failure where the member is not there or of another kind; `where` says what was read.
  const Json& at(const std::string& name, Kind kind, const std::string& where) const;
  double number_at(const std::string& name, const std::string& where) const;
  const std::string& text_at(const std::string& name, const std::string& where) const;
};

// Throws Failure where it is no JSON.
Json parse_json(std::string_view text, const std::string& where);

}  // namespace kvedge::launch
#endif
