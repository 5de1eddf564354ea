#include "collectives/world.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "collectives/address_book.h"
#include "collectives/group.h"
#include "collectives/tuning_table.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace isthmus {
namespace {

std::bitset<kProcessorsMax> own_processors() {
  std::bitset<kProcessorsMax> out;
  for (const int cpu : own_cpus()) {
    if (static_cast<std::size_t>(cpu) < out.size()) {
      out.set(static_cast<std::size_t>(cpu));
    }
  }
  return out;
}

// Address space for buffers that peers read in place: all that could ever be filled. None where it
// is limited, unless asked for: the program may need what there is.
std::size_t heap_bytes() {
  if (env().HEAP_GB >= 0) {
    return static_cast<std::size_t>(env().HEAP_GB) << 30;
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return 0;
  }
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// By boot id: the ranks of each machine (whatever their containers) against the processors that
// they may use together. Above 1 ranks outnumber them.
std::map<std::string, double> ranks_per_processor(const std::vector<RankCard>& cards) {
  struct Machine {
    std::bitset<kProcessorsMax> together;
    std::size_t ranks = 0;
  };

  std::map<std::string, Machine> machines;
  for (const RankCard& card : cards) {
    Machine& machine = machines[card.node.boot_id];
    machine.together |= card.processors;
    ++machine.ranks;
  }
  std::map<std::string, double> out;
  for (const auto& [boot_id, machine] : machines) {
    const auto processors = static_cast<double>(std::max<std::size_t>(machine.together.count(), 1));
    out[boot_id] = static_cast<double>(machine.ranks) / processors;
  }
  return out;
}

std::int64_t default_timeout_ms(std::int64_t asked) {
  return asked >= 0 ? asked : env().TIMEOUT_S * 1000;
}

}  // namespace

class World::Impl : public std::enable_shared_from_this<World::Impl> {
 public:
  Impl() = default;
  ~Impl();

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status start(const WorldOptions& options, Rendezvous& store);
  // keep: true for groups that their user owns.
  Result<std::unique_ptr<Communicator>> make_group(std::span<const int> members,
                                                   std::string_view name, std::int64_t timeout_ms,
                                                   bool keep);
  void shut_down(std::string_view reason);

  Result<MemoryRegion> allocate(std::size_t bytes) const {
    return node_->pool()->take(std::max<std::size_t>(bytes, 1));
  }

  bool mapped(const void* data, std::size_t bytes) const { return node_->exposes(data, bytes); }

  WorldOptions options;
  std::shared_ptr<void> kept;  // the store that from_launcher() serves; ends with the world
  std::unique_ptr<Communicator> world_group;

 private:
  Status open(RankCard* mine, std::uint64_t nonce, Deadline deadline);
  Status connect(const RankCard& mine, Deadline deadline);
  void warn_of_fallback(const RankCard& mine) const;
  Result<Topology> restrict(std::span<const int> members) const;
  std::shared_ptr<const TunedRanks> tune(Topology* topology) const;
  Status join_shared(std::span<const int> members, std::string_view name, Group* group);

  std::uint64_t nonce_ = 0;
  std::string no_shared_memory_;  // why this rank has none; empty where it has
  std::vector<RankCard> cards_;
  double sharing_ = 1.0;  // as NodeCosts
  // Rank 0's, shared with the groups; null for none.
  std::shared_ptr<const TuningTable> tuning_;
  std::vector<std::uint64_t> node_of_;  // by world rank
  std::vector<int> rack_of_;            // the same
  std::unique_ptr<ShmNode> node_;
  std::unique_ptr<ShmTransport> shm_;  // null where no other rank shares this one's memory
  std::unique_ptr<TcpTransport> tcp_;
  std::unique_ptr<Engine> engine_;
  std::mutex groups_mutex_;
  std::map<std::uint64_t, std::uint32_t> instances_;  // groups made so far per name and members
};

World::Impl::~Impl() {
  shut_down("the world was destroyed");
  world_group.reset();
  engine_.reset();
}

Status World::Impl::open(RankCard* mine, std::uint64_t nonce, Deadline deadline) {
  ISTHMUS_TRY(check_own_cpus(env().CPUS));
  mine->rank = options.rank;
  mine->version = std::string(kVersion);
  mine->config_hash = env().schedule_hash();
  ISTHMUS_ASSIGN(mine->node, NodeIdentity::probe());
  if (!options.node_id.empty()) {
    mine->node.override_id = options.node_id;
  }
  mine->rack = options.rack_id.empty() ? env().RACK_ID : options.rack_id;
  mine->processors = own_processors();
  ShmNode::Options memory{.rank = options.rank,
                          .world_size = options.size,
                          .nonce = nonce,
                          .stage_bytes = static_cast<std::size_t>(env().STAGING_MB) << 20,
                          .named = env().SHM_NAMED,
                          .heap_bytes = heap_bytes(),
                          .pull = env().CMA};
  Result<std::unique_ptr<ShmNode>> node = ShmNode::create(memory);
  if (!node.ok()) {
    if (env().STRICT && mine->node.shared_memory) {
      return node.error();
    }
    no_shared_memory_ = node.error().message;
    mine->node.shared_memory = false;
    memory.unshared = true;
    node = ShmNode::create(memory);
    if (!node.ok()) {
      return node.error();
    }
  }
  node_ = std::move(node).value();
  mine->shared_memory = node_->self();
  TcpOptions tcp;
  tcp.rank = options.rank;
  tcp.size = options.size;
  tcp.incarnation = nonce;
  tcp.config = mine->config_hash;
  tcp.interfaces = env().IFACE;
  tcp.ports = env().PORT_RANGE;
  tcp.flows = static_cast<int>(env().FLOWS);
  tcp.route_target = launcher_variable("MASTER_ADDR");
  tcp.connect_timeout_ms = deadline.left_ms(monotonic_ns());
  tcp.checksums = env().CRC;
  ISTHMUS_ASSIGN(tcp_, TcpTransport::create(tcp));
  mine->tcp = tcp_->address();
  return {};
}

// Once a node: by its first rank without shared memory.
void World::Impl::warn_of_fallback(const RankCard& mine) const {
  if (no_shared_memory_.empty() || !env().SHM) {
    return;
  }
  const auto alike = [&](const RankCard& card) {
    return !card.node.shared_memory && card.node.hash() == mine.node.hash();
  };
  if (std::find_if(cards_.begin(), cards_.end(), alike)->rank == mine.rank) {
    log(LogLevel::kWarn, "shm", "{}; ranks of this node ({}) use TCP between them",
        no_shared_memory_, std::count_if(cards_.begin(), cards_.end(), alike));
  }
}

Status World::Impl::connect(const RankCard& mine, Deadline deadline) {
  std::vector<ShmNode::LocalPeer> locals;
  std::map<std::string, int> racks;
  for (const RankCard& card : cards_) {
    const bool local = card.node == mine.node && mine.node.shared_memory;
    rack_of_.push_back(racks.try_emplace(card.rack, static_cast<int>(racks.size())).first->second);
    // Ranks without shared memory are nodes of their own.
    node_of_.push_back(card.node.shared_memory
                           ? card.node.hash()
                           : hash_combine(card.node.hash(), static_cast<std::uint64_t>(card.rank)));
    if (card.rank != mine.rank) {
      ISTHMUS_TRY(tcp_->set_address(card.rank, card.tcp));
      if (local) {
        locals.push_back(card.shared_memory);
      }
    }
  }
  ISTHMUS_TRY(node_->connect(locals, deadline));
  if (!locals.empty()) {
    ISTHMUS_ASSIGN(shm_, ShmTransport::create(node_.get()));
  }
  return {};
}

Status World::Impl::start(const WorldOptions& given, Rendezvous& store) {
  options = given;
  install_fork_handlers();
  log_set_rank(options.rank);
  const Deadline deadline = Deadline::after_ms(env().CONNECT_TIMEOUT_S * 1000);
  const std::string prefix = fmt::format("isthmus/{}/", options.incarnation);
  if (options.rank == 0) {
    if (::getrandom(&nonce_, sizeof nonce_, 0) != sizeof nonce_) {
      return system_error(Code::kIo, errno, "cannot draw the nonce of the world");
    }
    ISTHMUS_TRY(store.set(prefix + "nonce", fmt::format("{}", nonce_)));
  } else {
    const Result<std::string> text = store.get(prefix + "nonce", deadline);
    if (!text.ok()) {
      Error error = text.error();
      error.culprit = 0;
      error.message = fmt::format("rank {}: rank 0 did not come to the rendezvous in time ({})",
                                  options.rank, text.error().message);
      return error;
    }
    std::from_chars(text->data(), text->data() + text->size(), nonce_);
  }
  RankCard mine;
  if (const Status opened = open(&mine, nonce_, deadline); !opened.ok()) {
    Error error = opened.error();
    error.culprit = options.rank;
    error.message = fmt::format("rank {}: {}", options.rank, error.message);
    report_failure(error, options.rank, store, prefix);
    return error;
  }
  ISTHMUS_ASSIGN(
      AddressBook book,
      exchange_cards(mine, options.rank == 0 && options.tuned ? load_tuning_text() : std::string(),
                     options.size, store, prefix, deadline));
  cards_ = std::move(book.cards);
  if (!book.tuning.empty()) {
    ISTHMUS_ASSIGN(TuningTable table, TuningTable::from_json(book.tuning));
    tuning_ = std::make_shared<const TuningTable>(std::move(table));
  }
  const std::map<std::string, double> sharing = ranks_per_processor(cards_);
  // Of the machine where it is most: all ranks know all cards, and so agree.
  for (const auto& [boot_id, ranks] : sharing) {
    sharing_ = std::max(sharing_, ranks);
  }
  warn_of_fallback(mine);
  ISTHMUS_TRY(connect(mine, deadline));
  const Engine::Options engine_options{.world_rank = options.rank,
                                       .crowded = sharing.at(mine.node.boot_id) > 1.0,
                                       .spin_ns = env().SPIN_US * 1000};
  std::vector<Transport*> transports;
  if (shm_ != nullptr) {
    transports.push_back(shm_.get());
  }
  transports.push_back(tcp_.get());
  engine_ = std::make_unique<Engine>(engine_options, node_.get(), std::move(transports));
  std::vector<int> all(static_cast<std::size_t>(options.size));
  for (int rank = 0; rank < options.size; ++rank) {
    all[static_cast<std::size_t>(rank)] = rank;
  }
  ISTHMUS_ASSIGN(world_group, make_group(all, "world", options.timeout_ms, false));
  return {};
}

Result<Topology> World::Impl::restrict(std::span<const int> members) const {
  std::vector<int> nodes;
  std::vector<int> racks;
  std::vector<std::uint64_t> seen;
  for (const int member : members) {
    racks.push_back(rack_of_[static_cast<std::size_t>(member)]);
    const std::uint64_t node = node_of_[static_cast<std::size_t>(member)];
    const auto found = std::find(seen.begin(), seen.end(), node);
    nodes.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) {
      seen.push_back(node);
    }
  }
  ISTHMUS_ASSIGN(Topology topology, Topology::make(nodes, {}, racks));
  topology.set_pulls(topology.one_mapped_node() && node_->pulls(members));
  return topology;
}

// The part of the table for a group of this topology, which then costs what was measured.
std::shared_ptr<const TunedRanks> World::Impl::tune(Topology* topology) const {
  const TunedRanks* tuned =
      tuning_ == nullptr ? nullptr : tuning_->nearest(topology->locals_max(), sharing_);
  NodeCosts costs = tuned == nullptr ? NodeCosts() : tuned->costs;
  costs.sharing = sharing_;
  topology->set_node_costs(costs);
  if (tuning_ != nullptr && tuning_->between) {
    topology->set_between(*tuning_->between);
    topology->set_across(*tuning_->between);  // a rack's link is as wide as a node's
  }
  return std::shared_ptr<const TunedRanks>(tuning_, tuned);
}

Status World::Impl::join_shared(std::span<const int> members, std::string_view name, Group* group) {
  Channel& channel = group->channel();
  const Topology& topology = group->topology();
  const int node = topology.node_of(static_cast<int>(channel.rank));
  for (const int group_rank : topology.members(node)) {
    const int world_rank = members[static_cast<std::size_t>(group_rank)];
    if (world_rank == options.rank) {
      channel.local = static_cast<std::uint32_t>(channel.peers.size());
    }
    MappedPeer peer;
    peer.world_rank = world_rank;
    channel.peers.push_back(peer);
  }
  channel.seen_failures.assign(channel.peers.size(), {});
  ISTHMUS_ASSIGN(channel.own,
                 node_->own().join_group(channel.key, name, channel.rank, channel.ranks()));
  return {};
}

Result<std::unique_ptr<Communicator>> World::Impl::make_group(std::span<const int> members,
                                                              std::string_view name,
                                                              std::int64_t timeout_ms, bool keep) {
  const auto self = std::find(members.begin(), members.end(), options.rank);
  const bool known = std::all_of(members.begin(), members.end(),
                                 [&](int rank) { return rank >= 0 && rank < options.size; });
  if (self == members.end() || !known) {
    return Error{.code = Code::kInvalidArgument,
                 .culprit = options.rank,
                 .message = fmt::format("rank {} cannot make group '{}' of {} ranks: it must be a "
                                        "member, and ranks go from 0 to {}",
                                        options.rank, name, members.size(), options.size - 1)};
  }
  ISTHMUS_ASSIGN(Topology topology, restrict(members));
  std::uint64_t key = hash_combine(nonce_, hash_bytes(name));
  for (const int member : members) {
    key = hash_combine(key, static_cast<std::uint64_t>(member));
  }
  const std::lock_guard<std::mutex> lock(groups_mutex_);
  // A group of the same name and members may be made again: members count alike.
  key = hash_combine(key, instances_[key]++);
  std::shared_ptr<const TunedRanks> tuned = tune(&topology);
  auto group =
      std::make_unique<Group>(*engine_, std::move(topology), std::move(tuned),
                              keep ? std::static_pointer_cast<void>(shared_from_this()) : nullptr);
  Channel& channel = group->channel();
  channel.key = key == 0 ? 1 : key;
  channel.name = name;
  channel.rank = static_cast<std::uint32_t>(self - members.begin());
  channel.world_ranks.assign(members.begin(), members.end());
  channel.endpoints.assign(members.size(), nullptr);
  channel.waiting.assign(members.size(), {});
  channel.timeout_ms.store(default_timeout_ms(timeout_ms >= 0 ? timeout_ms : options.timeout_ms),
                           std::memory_order_relaxed);
  {
    const BatonGuard guard(engine_->baton());
    engine_->sweep_left();
    ISTHMUS_TRY(join_shared(members, name, group.get()));
  }
  engine_->add_channel(&channel);
  return std::unique_ptr<Communicator>(new Communicator(std::move(group)));
}

void World::Impl::shut_down(std::string_view reason) {
  if (engine_ != nullptr) {
    engine_->shutdown(Error{.code = Code::kAborted,
                            .culprit = options.rank,
                            .message = fmt::format("rank {}: {}", options.rank, reason)});
  }
}

World::World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

World::~World() {
  impl_->shut_down("the world was destroyed");
}

Result<std::unique_ptr<World>> World::create(const WorldOptions& options, Rendezvous& store) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("rank {} of a world of {} ranks: expected 0 <= rank < size",
                                        options.rank, options.size)};
  }
  auto impl = std::make_shared<Impl>();
  ISTHMUS_TRY(impl->start(options, store));
  return std::unique_ptr<World>(new World(std::move(impl)));
}

Result<MemoryRegion> World::allocate(std::size_t bytes) {
  return impl_->allocate(bytes);
}

bool World::allocates_for_models() {
  return env().GROUP_MEMORY;
}

bool World::mapped(const void* data, std::size_t bytes) const {
  return impl_->mapped(data, bytes);
}

void World::keep(std::shared_ptr<void> object) {
  impl_->kept = std::move(object);
}

int World::rank() const {
  return impl_->options.rank;
}

int World::size() const {
  return impl_->options.size;
}

Communicator& World::communicator() {
  return *impl_->world_group;
}

Result<std::unique_ptr<Communicator>> World::new_group(std::span<const int> world_ranks,
                                                       std::string_view name,
                                                       std::int64_t timeout_ms) {
  return impl_->make_group(world_ranks, name, timeout_ms, true);
}

void World::shutdown(std::string_view reason) {
  impl_->shut_down(reason);
}

void World::set_lane_hook(LaneHook hook) {
  Lanes::set_hook(std::move(hook));
}

}  // namespace isthmus
