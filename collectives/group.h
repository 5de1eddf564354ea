#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call.h"
#include "collectives/terms.h"
#include "collectives/tuning_table.h"
#include "schedule/channel.h"
#include "schedule/engine.h"
#include "topology/topology.h"

namespace isthmus {

// What a Communicator holds: the engine's channel, the group's topology and its cache of plans.
// Thread rule: public functions from any thread; plans under the engine's baton.
class Group {
 public:
  // Most plans kept; the least recently used one goes.
  static constexpr std::size_t kPlansMax = 256;

  // tuned: the part of the world's table for this group, or null.
  // keep: what owns the engine, null where that outlives the group anyway.
  Group(Engine& engine, Topology topology, std::shared_ptr<const TunedRanks> tuned,
        std::shared_ptr<void> keep)
      : keep_(std::move(keep)),
        engine_(engine),
        topology_(std::move(topology)),
        tuned_(std::move(tuned)) {
    channel_.by_messages = [this](const Run& run) { return plan_by_messages(run); };
  }

  ~Group();

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Channel& channel() { return channel_; }

  const Channel& channel() const { return channel_; }

  const Topology& topology() const { return topology_; }

  Engine& engine() { return engine_; }

  Status run(const Call& call, const CallOptions& options);
  Result<WorkRef> start(const Call& call, const CallOptions& options);
  Result<WorkRef> start_message(const MessageCall& call, const CallOptions& options);
  void abort(std::string_view reason);
  std::shared_ptr<const Error> failure();
  std::string algorithm_of(const Call& call);
  void force_algorithm(std::string_view name);

 private:
  struct Cached {
    std::uint64_t key = 0;
    std::shared_ptr<const Plan> plan;
  };

  Status check(const Call& call) const;
  Terms terms_of(const Call& call) const;
  Result<const Plan*> find_plan(const Call& call, const Terms& terms);
  Payload payload_of(const Call& call, const Terms& terms) const;
  Result<std::shared_ptr<const Plan>> build_plan(const Call& call, const Terms& terms,
                                                 const Payload& payload, const Topology& topology,
                                                 std::string_view forced) const;
  Result<std::shared_ptr<const Plan>> plan_by_messages(const Run& run) const;
  void bind(const Call& call, const Terms& terms, const CallOptions& options, Run* run) const;
  void bind_sums(const Call& call, const Terms& terms, Run* run) const;
  bool divides_first(const Call& call) const;
  bool makes_operand(const Call& call, const Terms& terms) const;
  Status make_operand(const Call& call, const Terms& terms, Run* run);
  Status run_alone(const Call& call, const Terms& terms) const;

  const std::shared_ptr<void> keep_;  // shared by the world and its groups; last to go
  Engine& engine_;
  const Topology topology_;
  const std::shared_ptr<const TunedRanks> tuned_;  // shared by the groups of a world
  std::string forced_;                             // under the baton; ISTHMUS_ALGO where empty
  Channel channel_;
  std::uint64_t last_key_ = 0;
  const Plan* last_plan_ = nullptr;
  std::list<Cached> plans_;  // most recent first
  std::unordered_map<std::uint64_t, std::list<Cached>::iterator> index_;
};

}  // namespace isthmus
