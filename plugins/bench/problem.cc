#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../cpu/codebook.h"
#include "../cpu/half.h"

namespace kvedge::bench {
namespace {

uint32_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(state >> 33);
}

struct Bits {
  std::vector<uint8_t> bytes;
  void set(int64_t at, int value) { bytes[at / 8] |= uint8_t((value & 1) << (at % 8)); }
};

template <typename At>
std::vector<uint8_t> planes(const Problem& p, At at) {
  const int64_t plane = int64_t(p.lanes) * p.depth;
  Bits out{std::vector<uint8_t>(p.bits * plane / 8)};
  for (int i = 0; i < p.depth; ++i)
    for (int lane = 0; lane < p.lanes; ++lane)
      for (int b = 0; b < p.bits; ++b) out.set(b * plane + at(i, lane), p.codes[i * p.lanes + lane] >> b);
  return out.bytes;
}

// One field of every code.
void fields(const Problem& p, int width, int low, std::vector<uint32_t>& words) {
  for (int i = 0; i < p.depth; ++i)
    for (int lane = 0; lane < p.lanes; ++lane) {
      const Place at = place_of(i, p.bits, width);
      int code = p.codes[i * p.lanes + lane];
      if (width == 8 && code & 128) code = 256 - (code & 127);  // eight bits are kept as two's complement
      words[at.word * p.lanes + lane] |= uint32_t(code >> low & ((1 << width) - 1)) << at.bit;
    }
}

std::vector<uint8_t> bytes_of(const std::vector<uint32_t>& words) {
  std::vector<uint8_t> out(4 * words.size());
  std::memcpy(out.data(), words.data(), out.size());
  return out;
}

std::vector<uint8_t> nibbles(const Problem& p) {
  std::vector<uint32_t> words(p.depth * p.bits / 32 * p.lanes);
  fields(p, p.bits == 3 ? 2 : p.bits, 0, words);
  if (p.bits == 3) fields(p, 1, 2, words);
  return bytes_of(words);
}

// Per byte of three words w: codes 0 and 1 in w0, 2 and 3 in w1, 4 and 5 in w2; what is left makes 6 and 7.
std::vector<uint8_t> triples(const Problem& p) {
  std::vector<uint32_t> words(p.depth / 32 * 3 * p.lanes);
  for (int i = 0; i < p.depth; ++i)
    for (int lane = 0; lane < p.lanes; ++lane) {
      const uint32_t code = p.codes[i * p.lanes + lane];
      const int slot = i % 32 / 4, byte = 8 * (i % 4);
      uint32_t* w = words.data() + i / 32 * 3 * p.lanes + lane;
      if (slot < 6) {
        w[slot / 2 * p.lanes] |= code << (byte + 3 * (slot % 2));
      } else {
        w[(slot - 6) * p.lanes] |= (code & 3) << (byte + 6);
        w[2 * p.lanes] |= (code >> 2) << (byte + slot);
      }
    }
  return bytes_of(words);
}

template <typename T, typename Convert>
std::vector<uint8_t> exact(const Problem& p, Convert convert) {
  std::vector<uint8_t> out(sizeof(T) * p.depth * p.lanes);
  for (int i = 0; i < p.depth; ++i)
    for (int lane = 0; lane < p.lanes; ++lane) {
      const T value = convert(level_of(p.bits, p.codes[i * p.lanes + lane]));
      const int64_t at = p.keys ? lane * p.depth + i : i * p.lanes + lane;
      std::memcpy(out.data() + sizeof(T) * at, &value, sizeof(T));
    }
  return out;
}

}  // namespace

float level_of(int bits, int code) {
  const int magnitude = code & ((1 << (bits - 1)) - 1);
  const float level = bits == bits_of(Code::kUniform) ? float(magnitude) : levels_of(bits)[magnitude];  // their step: in the scale
  return code >> (bits - 1) ? -level : level;
}

int integer_level(int bits, int code, int top) {
  if (bits == bits_of(Code::kUniform)) return int(level_of(bits, code));
  const float largest = levels_of(bits)[level_count(bits) - 1];
  return int(std::lround(level_of(bits, code) / largest * float(top)));
}

Problem make_problem(int lanes, int depth, int bits, bool keys) {
  Problem p{lanes, depth, bits, keys, std::vector<uint8_t>(lanes * depth), std::vector<float>(kMaxRows * depth)};
  uint64_t state = 12345;
  for (uint8_t& code : p.codes) code = uint8_t(next_random(state) & ((1u << bits) - 1));
  for (float& x : p.x) {
    x = float(next_random(state) % 2001) / 1000.0f - 1.0f;
    if (!keys) x = std::fabs(x);
  }
  return p;
}

std::vector<uint8_t> store(const Problem& p, Order order) {
  switch (order) {
    case Order::kPlanes: return planes(p, [&](int i, int lane) { return i * p.lanes + lane; });
    case Order::kRows: return planes(p, [&](int i, int lane) { return lane * p.depth + i; });
    case Order::kQuads: return planes(p, [&](int i, int lane) { return (i / 4 * p.lanes + lane) * 4 + i % 4; });
    case Order::kNibbles: return nibbles(p);
    case Order::kTriples: return triples(p);
    case Order::kHalf: return exact<uint16_t>(p, [](float x) { return to_half(x); });
    case Order::kFloat: return exact<float>(p, [](float x) { return x; });
  }
  return {};
}

std::vector<double> products(const Problem& p, int rows) {
  std::vector<double> y(rows * p.lanes);
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < p.depth; ++i)
      for (int lane = 0; lane < p.lanes; ++lane)
        y[row * p.lanes + lane] += double(p.x[row * p.depth + i]) * level_of(p.bits, p.codes[i * p.lanes + lane]);
  return y;
}

std::vector<int8_t> integers(const Problem& p, int rows, int top) {
  std::vector<int8_t> out(rows * p.depth);
  for (size_t i = 0; i < out.size(); ++i) out[i] = int8_t(std::lround(p.x[i] * float(top)));
  return out;
}

std::vector<int32_t> integer_products(const Problem& p, const std::vector<int8_t>& x, int rows, int top) {
  std::vector<int32_t> y(rows * p.lanes);
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < p.depth; ++i) {
      const int factor = p.keys ? x[row * p.depth + i] : uint8_t(x[row * p.depth + i]);
      for (int lane = 0; lane < p.lanes; ++lane)
        y[row * p.lanes + lane] += factor * integer_level(p.bits, p.codes[i * p.lanes + lane], top);
    }
  return y;
}

}  // namespace kvedge::bench
