// What torchrun, mpirun, srun and people put into the environment.

#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <poll.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/hash.h"
#include "collectives/world.h"
#include "transport/memory_store.h"
#include "transport/tcp_store.h"

namespace isthmus {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};

// In order of preference: what the user set by hand or torchrun set comes first.
constexpr std::array<Launcher, 5> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE"},
    {"PMIx and Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
}};

std::optional<int> number(const std::string& text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// torchrun's own store listens on MASTER_PORT: ours takes another port that all ranks of this start
// derive alike.
std::uint16_t beside_agent(const std::string& port) {
  constexpr std::uint64_t kFirstPort = 20'000;
  constexpr std::uint64_t kPorts = 12'000;
  const std::uint64_t start = hash_bytes(port + "/" + launcher_variable("TORCHELASTIC_RUN_ID") +
                                         "/" + launcher_variable("TORCHELASTIC_RESTART_COUNT"));
  return static_cast<std::uint16_t>(kFirstPort + start % kPorts);
}

// A rank that could not join: rank 0, whose store holds the reason for all, serves it until the
// others have it, and for a few seconds at most.
void leave_store(TcpStore& store, const WorldOptions& options) {
  constexpr std::int64_t kPatienceMs = 3000;
  constexpr std::string_view kLeft = "isthmus/left";
  if (options.rank != 0) {
    [[maybe_unused]] const Result<std::int64_t> told = store.add(kLeft, 1);
    return;
  }
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!deadline.passed(monotonic_ns())) {
    const Result<std::int64_t> left = store.add(kLeft, 0);
    if (!left.ok() || *left >= options.size - 1) {
      return;
    }
    ::poll(nullptr, 0, 5);
  }
}

}  // namespace

Result<WorldOptions> options_from_launcher() {
  for (const Launcher& launcher : kLaunchers) {
    const std::string rank = launcher_variable(launcher.rank);
    const std::string size = launcher_variable(launcher.size);
    if (rank.empty() || size.empty()) {
      continue;
    }
    const std::optional<int> rank_value = number(rank);
    const std::optional<int> size_value = number(size);
    if (!rank_value || !size_value || *rank_value < 0 || *rank_value >= *size_value) {
      return Error{.code = Code::kInvalidArgument,
                   .message = fmt::format("{}='{}' and {}='{}': expected 0 <= rank < size",
                                          launcher.rank, rank, launcher.size, size)};
    }
    WorldOptions options;
    options.rank = *rank_value;
    options.size = *size_value;
    options.incarnation = launcher_variable("TORCHELASTIC_RESTART_COUNT");
    return options;
  }
  return Error{.code = Code::kInvalidArgument,
               .message =
                   "no launcher found: start with torchrun, mpirun or srun, or set RANK, "
                   "WORLD_SIZE, MASTER_ADDR and MASTER_PORT"};
}

Result<std::unique_ptr<World>> World::from_launcher() {
  ISTHMUS_ASSIGN(const WorldOptions options, options_from_launcher());
  const std::string host = launcher_variable("MASTER_ADDR");
  const std::string port_text = launcher_variable("MASTER_PORT");
  std::uint16_t port = 0;
  const auto [end, failure] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (options.size > 1 && (host.empty() || failure != std::errc() || port == 0)) {
    return Error{
        .code = Code::kInvalidArgument,
        .message = fmt::format("MASTER_ADDR='{}' and MASTER_PORT='{}': expected a host that "
                               "all ranks reach and a free port of rank 0",
                               host, port_text)};
  }
  if (launcher_variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    port = beside_agent(port_text);
  }
  if (options.size == 1) {
    MemoryStore alone;
    return create(options, alone);
  }
  const Deadline deadline = Deadline::after_ms(env().CONNECT_TIMEOUT_S * 1000);
  ISTHMUS_ASSIGN(std::unique_ptr<TcpStore> store, options.rank == 0
                                                      ? TcpStore::serve(host, port, deadline)
                                                      : TcpStore::connect(host, port, deadline));
  Result<std::unique_ptr<World>> joined = create(options, *store);
  if (!joined.ok()) {
    leave_store(*store, options);
    return joined.error();
  }
  std::unique_ptr<World> world = std::move(joined).value();
  // Others may still read the table: rank 0 serves it as long as the world lives.
  world->keep(std::shared_ptr<void>(std::move(store)));
  return world;
}

}  // namespace isthmus
