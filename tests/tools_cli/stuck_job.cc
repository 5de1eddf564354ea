// A job for tests of `isthmus status`: two forked ranks do three all_reduces; then rank 1 stops
// itself (SIGSTOP) before the fourth, in which rank 0 waits for it. Prints "pids PID0 PID1" first.
// The tests let rank 1 go on with SIGCONT, and both end with 0. Every wait has a time limit;
// children die with their parent.
//
// Usage: stuck_job DIRECTORY [NODES]
//   DIRECTORY   for the rendezvous; made here
//   NODES       a letter for each rank; ranks with different ones share no memory

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/world.h"
#include "transport/file_store.h"

namespace {

constexpr int kRanks = 2;
constexpr int kTimeLimitS = 60;

int say(int rank, const isthmus::Error& error) {
  std::fprintf(stderr, "stuck_job rank %d: %s\n", rank, error.to_string().c_str());
  return 1;
}

int run_rank(int rank, const char* directory, const std::string& nodes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kTimeLimitS);
  isthmus::Result<std::unique_ptr<isthmus::FileStore>> store =
      isthmus::FileStore::create(directory);
  if (!store.ok()) {
    return say(rank, store.error());
  }
  isthmus::WorldOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.node_id = nodes.substr(static_cast<std::size_t>(rank), 1);
  options.timeout_ms = kTimeLimitS * 1000;
  isthmus::Result<std::unique_ptr<isthmus::World>> world = isthmus::World::create(options, **store);
  if (!world.ok()) {
    return say(rank, world.error());
  }
  std::array<float, 100> data{};
  for (int number = 1; number <= 4; ++number) {
    if (number == 4 && rank == 1) {
      ::raise(SIGSTOP);
    }
    const isthmus::Status done = (*world)->communicator().all_reduce(
        data.data(), data.data(), data.size(), isthmus::DType::kFloat32, isthmus::RedOp::kSum);
    if (!done.ok()) {
      return say(rank, done.error());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string nodes = argc == 3 ? argv[2] : "aa";
  if (argc < 2 || argc > 3 || nodes.size() != kRanks) {
    std::fprintf(stderr, "usage: stuck_job DIRECTORY [NODES]\n");
    return 2;
  }
  ::alarm(kTimeLimitS);
  std::array<pid_t, kRanks> pids{};
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::_exit(run_rank(rank, argv[1], nodes));
    }
    if (pid < 0) {
      std::perror("fork");
      return 1;
    }
    pids[static_cast<std::size_t>(rank)] = pid;
  }
  std::printf("pids %d %d\n", static_cast<int>(pids[0]), static_cast<int>(pids[1]));
  std::fflush(stdout);
  int code = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      code = 1;
    }
  }
  return code;
}
