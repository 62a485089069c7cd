// What every candidate has to compute, and its codes in every storage order.
//
// K and V of a page are the same problem: y[row][lane] = sum over i of x[row][i] * level(lane, i). For K a
// lane is a token and i a channel (x: queries), for V a lane is a channel and i a token (x: weights). `depth`
// is the range of i. A code is sign and magnitude, the sign in its top bit.
#ifndef KVEDGE_BENCH_PROBLEM_H
#define KVEDGE_BENCH_PROBLEM_H

#include <cstdint>
#include <vector>

namespace kvedge::bench {

enum class Order {
  kPlanes,     // A   bit planes, bit i*lanes + lane
  kRows,       // D   bit planes of K by token, bit lane*depth + i
  kQuads,      // B   bit planes, bit (i/4 * lanes + lane)*4 + i%4
  kNibbles,    // C   32-bit words per lane, i/8 spread over nibbles; see word_of
  kTriples,    // E   3 bits side by side in three words per lane and 32 i
  kHalf,       //     fp16 by token (K: lane by lane; V: i by i)
  kFloat,      //     fp32 by token
};

struct Problem {
  int lanes, depth, bits;
  bool keys;
  std::vector<uint8_t> codes;   // [depth][lanes]
  std::vector<float> x;         // [kMaxRows][depth]
};

constexpr int kMaxRows = 192;

// Where C keeps the field of width bits (1, 2, 4 or 8) of one lane's element i: a word of that lane, a bit in it.
// Words [depth/32][bits][lanes]; with 3 bits a group of 32 elements has two words of pairs, then one of signs.
struct Place {
  int word, bit;
};
inline Place place_of(int i, int bits, int width) {
  const int group = i / 32 * bits, octet = i % 32 / 8, nibble = 2 * (i % 4) + i / 4 % 2;
  if (width == 8) return {group + i % 32 / 4, 8 * (i % 4)};
  if (width == 4) return {group + octet, 4 * nibble};
  if (width == 2) return {group + octet / 2, 4 * nibble + 2 * (octet % 2)};
  // The sign, in that half of the nibble where the two magnitude bits of its octet are not.
  return {group + 2, 4 * nibble + 2 * (1 - octet % 2) + octet / 2};
}

float level_of(int bits, int code);
int integer_level(int bits, int code, int top);  // the largest level becomes top

Problem make_problem(int lanes, int depth, int bits, bool keys);
std::vector<uint8_t> store(const Problem& p, Order order);

// The plain loops that decide who is right.
std::vector<double> products(const Problem& p, int rows);
std::vector<int32_t> integer_products(const Problem& p, const std::vector<int8_t>& x, int rows, int top);

// x in integers, the largest becomes top: signed for queries; for weights (x >= 0) unsigned.
std::vector<int8_t> integers(const Problem& p, int rows, int top);

}  // namespace kvedge::bench
#endif
