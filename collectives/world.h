#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/export.h"
#include "base/result.h"
#include "collectives/communicator.h"
#include "transport/memory_region.h"
#include "transport/rendezvous.h"

namespace isthmus {

struct WorldOptions {
  int rank = 0;
  int size = 1;
  std::string
      incarnation;  // in every rendezvous key: restart count and a nonce that all ranks share
  std::int64_t timeout_ms = -1;  // default limit of operations; -1: ISTHMUS_TIMEOUT_S
  std::string node_id;           // as ISTHMUS_NODE_ID, for ranks as threads; empty: that variable
  std::string rack_id;           // the same of ISTHMUS_RACK_ID
  bool tuned = true;             // false: built-in costs, whatever table there is
};

// RANK, WORLD_SIZE, LOCAL_WORLD_SIZE or the variables of Open MPI (OMPI_COMM_WORLD_*), PMI and
// Slurm.
ISTHMUS_API Result<WorldOptions> options_from_launcher();

// One process's (or one thread's, in tests) membership in a job: its engine, transports and
// connections, shared by all its groups. Several worlds can live in one process.
// Thread rule: any thread; shutdown() and the destructor once.
class ISTHMUS_API World {
 public:
  // Collective over all ranks: one address exchange through `store`, which is not used afterwards.
  // Fails on every rank, naming who has not come, when the connect time limit passes.
  static Result<std::unique_ptr<World>> create(const WorldOptions& options, Rendezvous& store);

  // As started by torchrun, mpirun, srun or by hand: options_from_launcher() and a TCP store at
  // MASTER_ADDR:MASTER_PORT that rank 0 serves.
  static Result<std::unique_ptr<World>> from_launcher();

  ~World();

  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;

  // The group of all ranks; lives as long as the world. Groups from new_group() may outlive it.
  Communicator& communicator();

  // A group of some ranks, made by its members only; no store, no traffic with others. `name` must
  // be the same on all members and differ between groups that are alive at once with equal members.
  // timeout_ms -1: the world's.
  Result<std::unique_ptr<Communicator>> new_group(std::span<const int> world_ranks,
                                                  std::string_view name,
                                                  std::int64_t timeout_ms = -1);

  // A buffer of `bytes` in memory that the ranks of this node read in place, where that is to be
  // had (MemoryRegion::mapped), for operations of this world's groups. Kept blocks are handed out
  // again: cheap after the first time. Fails with kResource.
  Result<MemoryRegion> allocate(std::size_t bytes);

  // ISTHMUS_GROUP_MEMORY: whether a framework's binding is to put the buffers that its models
  // communicate from into such memory, unasked by the program.
  static bool allocates_for_models();

  // Whether the ranks of this node use these bytes in place.
  bool mapped(const void* data, std::size_t bytes) const;

  // Ends every operation of every group with `reason` and says goodbye; waits for no peer.
  // Idempotent.
  void shutdown(std::string_view reason);

  // Callbacks asked for with Work::on_done() run on lane threads; this hook wraps each lane
  // thread's life (Python needs it). Set before the first asynchronous operation.
  using LaneHook = std::function<void(const std::function<void()>& body)>;
  static void set_lane_hook(LaneHook hook);

 private:
  friend class Communicator;
  class Impl;
  explicit World(std::shared_ptr<Impl> impl);

  // Owns something for as long as the world lives.
  void keep(std::shared_ptr<void> object);

  std::shared_ptr<Impl> impl_;  // shared with the groups made, which may outlive the World
};

}  // namespace isthmus
