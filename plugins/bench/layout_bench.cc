// Which storage order of packed pages is fastest to read (README.md): checks every candidate against plain
// loops, then times them in turn.
//
//   layout_bench                                         products of pages in the L1 cache and of pages in memory
//   layout_bench check                                   only the checks
//   layout_bench avx512 bits=3 dim=64 rounds=50          a part of it
#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "timing.h"

namespace kvedge::bench {
namespace {

constexpr int kTokens = 64, kPrefillRows = 192, kStreamRows = 3;
constexpr int kDecodeRows[] = {1, 3, 7};
constexpr int64_t kStreamBytes = 64 << 20;
const Isa* const kIsas[] = {&avx2::kIsa, &avxvnni::kIsa, &avx512::kIsa};

// One stored page of one head, K or V, with all that kernels take.
struct Case {
  const Isa& isa;
  const Kernel& kernel;
  Problem problem;
  std::vector<uint8_t> page;
  Tables float_tables, byte_tables;
  std::vector<float> tile, y;
  std::vector<int8_t> x;
  std::vector<int32_t> start, integer_y;

  Case(const Isa& isa_, const Kernel& kernel_, int dim, int bits, bool keys)
      : isa(isa_), kernel(kernel_),
        problem(make_problem(keys ? kTokens : dim, keys ? dim : kTokens, bits, keys)),
        page(store(problem, kernel.order)), tile(problem.lanes * problem.depth), y(kMaxRows * problem.lanes),
        start(kMaxRows), integer_y(kMaxRows * problem.lanes) {
    const int top = isa.top_level, bias = keys ? (bits == 8 ? 128 : top + 1) : 0;
    x = integers(problem, kMaxRows, keys ? isa.top_query : isa.top_weight);
    std::vector<float> levels(256);
    std::vector<int8_t> bytes(256);
    for (int code = 0; code < 1 << bits; ++code) {
      levels[code] = level_of(bits, code);
      bytes[code] = int8_t(integer_level(bits, code, top) + bias);
    }
    kernel.prepare_floats(levels.data(), float_tables);
    if (kernel.prepare_bytes) kernel.prepare_bytes(bytes.data(), byte_tables);
    for (int row = 0; row < kMaxRows; ++row)
      for (int i = 0; i < problem.depth; ++i) start[row] -= bias * x[row * problem.depth + i];
  }

  IntegerProduct integers_of() const { return problem.keys ? kernel.integer_keys : kernel.integer_values; }
  void floats(int rows, const uint8_t* at) {
    kernel.floats(at, problem.lanes, problem.depth, float_tables, rows, problem.x.data(), y.data());
  }
  void by_tile(int rows, const uint8_t* at) {
    expand(at);
    isa.tile_product(tile.data(), problem.lanes, problem.depth, rows, problem.x.data(), y.data());
  }
  void expand(const uint8_t* at) {
    kernel.expand(at, problem.lanes, problem.depth, float_tables, tile.data());
  }
  void by_integers(int rows, const uint8_t* at) {
    integers_of()(at, problem.lanes, problem.depth, byte_tables, rows, x.data(), start.data(), integer_y.data());
  }
};

bool fits(const Kernel& kernel, int bits, bool keys) {
  return (kernel.bits == 0 || kernel.bits == bits) && (keys ? kernel.for_keys : kernel.for_values);
}

int failures = 0;

void expect(bool right, const Case& c, const char* path, int rows) {
  if (right) return;
  ++failures;
  std::printf("WRONG: %s, %s, %d bits, %s, %d rows, %s\n", c.isa.name, c.kernel.name, c.problem.bits,
              c.problem.keys ? "K" : "V", rows, path);
}

bool near(const std::vector<float>& y, const std::vector<double>& right, double tolerance) {
  double largest = 0, error = 0;
  for (size_t n = 0; n < right.size(); ++n) {
    largest = std::max(largest, std::fabs(right[n]));
    error = std::max(error, std::fabs(y[n] - right[n]));
  }
  return error <= tolerance * largest;
}

void check(Case& c) {
  const double tolerance = c.kernel.order == Order::kHalf ? 1e-3 : 1e-5;
  for (int rows : {1, 3, 7, kPrefillRows}) {
    const std::vector<double> right = products(c.problem, rows);
    if (c.kernel.floats && rows <= 7) {
      std::fill(c.y.begin(), c.y.end(), NAN);
      c.floats(rows, c.page.data());
      expect(near(c.y, right, tolerance), c, "fp32", rows);
    }
    if (c.kernel.expand) {
      std::fill(c.y.begin(), c.y.end(), NAN);
      c.by_tile(rows, c.page.data());
      expect(near(c.y, right, tolerance), c, "tile", rows);
    }
    if (c.integers_of() && rows <= 7) {
      std::fill(c.integer_y.begin(), c.integer_y.end(), -1);
      c.by_integers(rows, c.page.data());
      const std::vector<int32_t> exact = integer_products(c.problem, c.x, rows, c.isa.top_level);
      expect(std::equal(exact.begin(), exact.end(), c.integer_y.begin()), c, "int8", rows);
    }
  }
}

template <class Body>
void for_kernels(const Isa& isa, int bits, bool keys, Body body) {
  for (int n = 0; n < isa.count; ++n)
    if (fits(isa.kernels[n], bits, keys)) body(isa.kernels[n]);
}

// How far integers are from the exact products, relative to their spread. The codes themselves are off by 34, 19
// and 10 % at 2, 3 and 4 bits.
void print_integer_error(Case& c) {
  const std::vector<double> right = products(c.problem, kStreamRows);
  c.by_integers(kStreamRows, c.page.data());
  const double largest = level_of(c.problem.bits, (1 << (c.problem.bits - 1)) - 1);
  const double top_x = c.problem.keys ? c.isa.top_query : c.isa.top_weight;
  const double unit = largest / (c.problem.bits == 8 ? largest : c.isa.top_level) / top_x;
  double error = 0, spread = 0;
  for (size_t n = 0; n < right.size(); ++n) {
    error += std::pow(c.integer_y[n] * unit - right[n], 2);
    spread += std::pow(right[n], 2);
  }
  std::printf("%s %d bits %s: %.2f %%\n", c.isa.name, c.problem.bits, c.problem.keys ? "K" : "V",
              100 * std::sqrt(error / spread));
}

void check_all() {
  int checked = 0;
  std::printf("error of integers:\n");
  for (const Isa* isa : kIsas) {
    if (!isa->usable()) continue;
    for (int dim : {64, 128})
      for (int bits : {2, 3, 4, 8})
        for (bool keys : {true, false})
          for_kernels(*isa, bits, keys, [&](const Kernel& kernel) {
            Case c(*isa, kernel, dim, bits, keys);
            check(c);
            if (kernel.order == Order::kNibbles && dim == 64 && c.integers_of()) print_integer_error(c);
            ++checked;
          });
  }
  std::printf("%d cases checked against plain loops, %d failures\n", checked, failures);
}

// Times in rows of candidates; a column that a candidate does not have is empty.
class Table {
 public:
  void row(const char* name) { rows.push_back({name, {}}); }
  void add(bool there, std::function<void()> run, double pages = 1, std::function<void()> before = [] {}) {
    rows.back().second.push_back(there ? int(timed.size()) : -1);
    if (there) timed.push_back({std::move(run), pages, std::move(before)});
  }
  void print(int rounds, const char* title, const char* columns) {
    measure(timed, rounds);
    const double ghz = clock_ghz();
    std::printf("\n%s: ns/cycles a page at %.2f GHz\n%-12s%s\n", title, ghz, "", columns);
    for (const auto& [name, cells] : rows) {
      std::printf("%-12s", name);
      for (const int at : cells) {
        if (at < 0) std::printf("%12s", "-");
        else std::printf("%6.0f/%-5.0f", timed[at].best, timed[at].best * ghz);
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }

 private:
  std::vector<Timed> timed;
  std::vector<std::pair<const char*, std::vector<int>>> rows;
};

std::string title_of(const Isa& isa, int dim, int bits, const char* what) {
  return std::string(isa.name) + ", D=" + std::to_string(dim) + ", " + std::to_string(bits) + " bits, " + what;
}

// The same page of one head over and over: it stays in the L1 cache.
void time_resident(const Isa& isa, int dim, int bits, bool keys, int rounds) {
  std::vector<std::unique_ptr<Case>> cases;
  Table table;
  for_kernels(isa, bits, keys, [&](const Kernel& kernel) {
    cases.push_back(std::make_unique<Case>(isa, kernel, dim, bits, keys));
    Case& c = *cases.back();
    table.row(kernel.name);
    for (int rows : kDecodeRows) table.add(kernel.floats, [&c, rows] { c.floats(rows, c.page.data()); });
    table.add(kernel.expand, [&c] { c.by_tile(3, c.page.data()); });
    table.add(kernel.expand, [&c] { c.by_tile(7, c.page.data()); });
    for (int rows : kDecodeRows) table.add(c.integers_of(), [&c, rows] { c.by_integers(rows, c.page.data()); });
    table.add(kernel.expand, [&c] { c.expand(c.page.data()); });
    table.add(kernel.expand, [&c] { c.by_tile(kPrefillRows, c.page.data()); });
  });
  table.print(rounds, title_of(isa, dim, bits, keys ? "K in L1" : "V in L1").c_str(),
              "    fp32 G=1      fp32 3      fp32 7      tile 3      tile 7    int8 G=1      int8 3      int8 7"
              "      expand   64x3 rows");
}

// kStreamBytes that all candidates use in turn, so that all stand on the same physical pages.
struct Arena {
  uint8_t* bytes;
  const void* owner = nullptr;
  Arena() {
    void* at = mmap(nullptr, kStreamBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::abort();
    madvise(at, kStreamBytes, MADV_HUGEPAGE);
    bytes = static_cast<uint8_t*>(at);
  }
  ~Arena() { munmap(bytes, kStreamBytes); }
  Arena(const Arena&) = delete;
};

// The same page again and again over the arena, K and V in turn.
struct Stream {
  Case keys, values;
  int64_t page_bytes, pages;
  Arena& arena;

  Stream(Case&& k, Case&& v, Arena& a)
      : keys(std::move(k)), values(std::move(v)), page_bytes(int64_t(keys.page.size() + values.page.size())),
        pages(kStreamBytes / page_bytes), arena(a) {}

  void fill() {
    if (arena.owner == this) return;
    for (int64_t page = 0; page < pages; ++page) {
      std::memcpy(arena.bytes + page * page_bytes, keys.page.data(), keys.page.size());
      std::memcpy(arena.bytes + page * page_bytes + keys.page.size(), values.page.data(), values.page.size());
    }
    arena.owner = this;
  }

  // Ahead: the next page is asked for before this one is read, as a kernel with a page table can.
  void read(void (Case::*product)(int, const uint8_t*), bool ahead) {
    for (int64_t page = 0; page < pages; ++page) {
      const uint8_t* at = arena.bytes + page * page_bytes;
      if (ahead && page + 1 < pages)
        for (int64_t n = 0; n < page_bytes; n += 64) __builtin_prefetch(at + page_bytes + n);
      (keys.*product)(kStreamRows, at);
      (values.*product)(kStreamRows, at + keys.page.size());
    }
  }
};

// Decode over pages in memory, K then V of each.
void time_streamed(const Isa& isa, int dim, int bits, int rounds) {
  Arena arena;
  std::vector<std::unique_ptr<Stream>> streams;
  Table table;
  const auto add = [&](const Kernel& key, const Kernel& value) {
    if (std::strcmp(key.name, value.name) != 0) return;
    streams.push_back(
        std::make_unique<Stream>(Case(isa, key, dim, bits, true), Case(isa, value, dim, bits, false), arena));
    Stream& s = *streams.back();
    const auto floats = key.floats ? &Case::floats : &Case::by_tile;
    table.row(key.name);
    for (bool ahead : {false, true}) {
      table.add(true, [&s, floats, ahead] { s.read(floats, ahead); }, double(s.pages), [&s] { s.fill(); });
      table.add(key.integer_keys, [&s, ahead] { s.read(&Case::by_integers, ahead); }, double(s.pages),
                [&s] { s.fill(); });
    }
  };
  for_kernels(isa, bits, true, [&](const Kernel& key) {
    for_kernels(isa, bits, false, [&](const Kernel& value) { add(key, value); });
  });
  table.print(rounds, title_of(isa, dim, bits, "K and V, G=3, streamed from 64 MB").c_str(),
              "        fp32        int8  fp32 ahead  int8 ahead");
}

struct Options {
  bool check_only = false;
  int rounds = 200, bits = 0, dim = 0;
  std::string isa;
};

void time_all(const Options& chosen) {
  for (const Isa* isa : kIsas)
    for (int bits : {3, 4, 2, 8})
      for (int dim : {64, 128}) {
        const bool wanted = (chosen.isa.empty() || chosen.isa == isa->name) && (!chosen.bits || chosen.bits == bits) &&
                            (!chosen.dim || chosen.dim == dim);
        if (!wanted || !isa->usable()) continue;
        time_resident(*isa, dim, bits, true, chosen.rounds);
        time_resident(*isa, dim, bits, false, chosen.rounds);
        time_streamed(*isa, dim, bits, chosen.rounds / 10 + 3);
      }
}

Options parse(int argc, char** argv) {
  Options chosen;
  for (int n = 1; n < argc; ++n) {
    const std::string word = argv[n];
    if (word == "check") chosen.check_only = true;
    else if (word.rfind("rounds=", 0) == 0) chosen.rounds = std::atoi(word.c_str() + 7);
    else if (word.rfind("bits=", 0) == 0) chosen.bits = std::atoi(word.c_str() + 5);
    else if (word.rfind("dim=", 0) == 0) chosen.dim = std::atoi(word.c_str() + 4);
    else chosen.isa = word;
  }
  return chosen;
}

}  // namespace
}  // namespace kvedge::bench

int main(int argc, char** argv) {
  const kvedge::bench::Options chosen = kvedge::bench::parse(argc, argv);
  kvedge::bench::check_all();
  if (!chosen.check_only) kvedge::bench::time_all(chosen);
  return kvedge::bench::failures ? 1 : 0;
}
