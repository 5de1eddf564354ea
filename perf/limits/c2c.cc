// c2c: how far apart the first two processors are right now.
//
// Prints one line: the one-way time of a cache line between them (a ping-pong of two flags), and
// the speed at which one reads 64 KiB that the other has just written. On a virtual machine both
// change by factors while one measures, so perf/peers/run.sh puts this line before each peer.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "perf/limits/team.h"

namespace isthmus::limits {
namespace {

constexpr int kRounds = 40;
constexpr int kPings = 2000;
constexpr int kReads = 50;
constexpr std::size_t kReadBytes = 64 << 10;

double now_us() {
  using std::chrono::duration;
  return duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Pair {
  Flag ping;
  Flag pong;
};

// Answers every ping, in the second half of a round after reading the buffer.
void answer(const Team& team, Pair* pair, const std::byte* buffer) {
  std::vector<std::byte> copy(kReadBytes);
  std::uint32_t turn = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kPings + kReads; ++i) {
      team.wait(&pair->ping, ++turn);
      if (i >= kPings) {
        std::memcpy(copy.data(), buffer, kReadBytes);
        asm volatile("" : : "r"(copy.data()) : "memory");
      }
      team.post(&pair->pong, turn);
    }
  }
}

void ask(const Team& team, Pair* pair, std::byte* buffer) {
  std::vector<double> ns;
  std::vector<double> speeds;
  std::uint32_t turn = 0;
  const auto exchange = [&] {
    team.post(&pair->ping, ++turn);
    team.wait(&pair->pong, turn);
  };
  for (int round = 0; round < kRounds; ++round) {
    const double start = now_us();
    for (int i = 0; i < kPings; ++i) {
      exchange();
    }
    ns.push_back((now_us() - start) / kPings / 2 * 1e3);
    std::vector<double> reads;
    for (int i = 0; i < kReads; ++i) {
      std::memset(buffer, i, kReadBytes);
      const double before = now_us();
      exchange();
      reads.push_back(static_cast<double>(kReadBytes) / (now_us() - before) / 1e3);
    }
    std::sort(reads.begin(), reads.end());
    speeds.push_back(reads[kReads / 2]);
  }
  std::sort(ns.begin(), ns.end());
  std::sort(speeds.begin(), speeds.end());
  std::printf(
      "c2c one-way ns: min %.0f q25 %.0f med %.0f q75 %.0f max %.0f | "
      "64K dirty read GB/s: min %.1f med %.1f max %.1f\n",
      ns.front(), ns[kRounds / 4], ns[kRounds / 2], ns[3 * kRounds / 4], ns.back(), speeds.front(),
      speeds[kRounds / 2], speeds.back());
}

int run() {
  Team team(2, {});
  if (team.crowded()) {
    std::fprintf(stderr, "c2c: this machine has one processor\n");
    return 1;
  }
  auto* pair = new (Team::share(sizeof(Pair))) Pair{};
  std::byte* buffer = Team::share(kReadBytes);
  team.fork();
  if (team.reports()) {
    ask(team, pair, buffer);
  } else {
    answer(team, pair, buffer);
  }
  team.join();
  return 0;
}

}  // namespace
}  // namespace isthmus::limits

int main() {
  return isthmus::limits::run();
}
