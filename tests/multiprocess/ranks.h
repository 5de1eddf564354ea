#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/temp_folder.h"
#include "collectives/world.h"
#include "transport/file_store.h"

namespace isthmus::testing {

// Forks ranks as processes that share a file store in a fresh folder; every rank has a watchdog
// alarm, dies with its parent, and is reaped by pid.
class Ranks {
 public:
  using Body = std::function<int(World& world)>;  // exit code of the rank

  struct Options {
    int size = 2;
    unsigned watchdog_s = 60;
    // Called on a rank whose world cannot be made; empty: the error goes to stderr.
    std::function<void(int rank, const Error& error)> told = {};
    std::vector<std::string> node_ids;  // by rank; empty: all on this node
    std::int64_t timeout_ms = 20'000;
    std::vector<std::pair<std::string, std::string>> variables = {};  // of the ranks' environment
    std::function<void(int rank)> before = {};  // in the rank's process, before its world is made
    std::vector<std::string> tune_files = {};   // ISTHMUS_TUNE_FILE by rank; empty: none
  };

  // Exit code of a rank whose world cannot be made.
  static constexpr int kNoWorld = 99;

  Ranks(const Options& options, const Body& body) : options_(options) {
    for (int rank = 0; rank < options.size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::alarm(options.watchdog_s);
        ::_exit(run(rank, body));
      }
      pids_.push_back(pid);
    }
  }

  ~Ranks() {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
    }
  }

  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  const std::string& folder() const { return folder_.path(); }

  // Exit code of a rank, or minus the signal that ended it.
  int wait(int rank) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid) {
      return -1000;
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // Waits for all; the codes by rank.
  std::vector<int> wait_all() {
    std::vector<int> codes;
    for (int rank = 0; rank < options_.size; ++rank) {
      codes.push_back(wait(rank));
    }
    return codes;
  }

 private:
  int run(int rank, const Body& body) {
    // What somebody measured on this machine must not decide about a test.
    ::setenv("ISTHMUS_TUNE_FILE",
             options_.tune_files.empty()
                 ? "none"
                 : options_.tune_files[static_cast<std::size_t>(rank)].c_str(),
             1);
    for (const auto& [name, value] : options_.variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    if (options_.before) {
      options_.before(rank);
    }
    Result<std::unique_ptr<FileStore>> store = FileStore::create(folder_.path() + "/store");
    if (!store.ok()) {
      std::fprintf(stderr, "%s\n", store.error().to_string().c_str());
      return 98;
    }
    WorldOptions world_options;
    world_options.rank = rank;
    world_options.size = options_.size;
    world_options.timeout_ms = options_.timeout_ms;
    if (!options_.node_ids.empty()) {
      world_options.node_id = options_.node_ids[static_cast<std::size_t>(rank)];
    }
    Result<std::unique_ptr<World>> world = World::create(world_options, **store);
    if (!world.ok()) {
      if (options_.told) {
        options_.told(rank, world.error());
      } else {
        std::fprintf(stderr, "rank %d: %s\n", rank, world.error().to_string().c_str());
      }
      return kNoWorld;
    }
    return body(**world);
  }

  Options options_;
  TempFolder folder_ = TempFolder::create("test").value();
  std::vector<pid_t> pids_;
};

}  // namespace isthmus::testing

// In a Body whose parameter is `world`: ends the rank with code 1, and says where.
#define REQUIRE_RANK(condition)                                                                   \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world.rank(), __FILE__, __LINE__, #condition); \
      return 1;                                                                                   \
    }                                                                                             \
  } while (false)

#define REQUIRE_OK(expression)                                                       \
  do {                                                                               \
    const Status status_ = (expression);                                             \
    if (!status_.ok()) {                                                             \
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world.rank(), __FILE__, __LINE__, \
                   status_.error().message.c_str());                                 \
      return 1;                                                                      \
    }                                                                                \
  } while (false)
