// Time of this thread, and the clock that it ran at.
#ifndef KVEDGE_BENCH_TIMING_H
#define KVEDGE_BENCH_TIMING_H

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvedge::bench {

inline double thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * double(now.tv_sec) + double(now.tv_nsec);
}

struct Timed {
  std::function<void()> run;
  double pages = 1;    // in one run
  std::function<void()> before = [] {};  // not timed
  double best = 1e30;  // ns per page
  int64_t batch = 0;
};

inline double ns_of(const std::function<void()>& run, int64_t times) {
  const double begin = thread_ns();
  for (int64_t n = 0; n < times; ++n) run();
  return thread_ns() - begin;
}

// The minimum over rounds in which every one has its turn, so that what disturbs one disturbs all.
inline void measure(std::vector<Timed>& all, int rounds) {
  constexpr double kBatchNs = 4e4;
  for (Timed& t : all) {
    t.before();
    t.run();
    t.batch = std::max<int64_t>(1, int64_t(kBatchNs / std::max(100.0, ns_of(t.run, 1))));
  }
  for (int round = 0; round < rounds; ++round)
    for (Timed& t : all) {
      t.before();
      t.best = std::min(t.best, ns_of(t.run, t.batch) / double(t.batch) / t.pages);
    }
}

// Clock in GHz from a chain of multiplications, three cycles each on every x86-64 core of the last ten years.
inline double clock_ghz() {
  constexpr int kSteps = 20000;
  double best = 1e30;
  for (int round = 0; round < 50; ++round) {
    uint64_t x = 3;
    const double begin = thread_ns();
    for (int n = 0; n < kSteps; ++n) asm volatile("imul %0, %0\nimul %0, %0\nimul %0, %0\nimul %0, %0" : "+r"(x));
    best = std::min(best, thread_ns() - begin);
  }
  return 4 * 3 * kSteps / best;
}

}  // namespace kvedge::bench
#endif
