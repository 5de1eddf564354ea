#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "transport/mapped.h"
#include "transport/shm/buffer_pool.h"
#include "transport/shm/lane_memory.h"
#include "transport/shm/segment.h"

namespace isthmus {

// This rank's view of the shared memory of its node: its own segment, the peers' segments, their
// bells and their liveness. Descriptors travel over an abstract unix socket whose peer must be of
// the same user and know the job's nonce.
//
// Liveness: each rank hands out a pidfd of itself, which becomes readable at its death, however
// many forked children hold its sockets. Where pidfds are not allowed, and between ranks that are
// threads of one process, the socket of the handshake is kept and its end of file serves instead.
// Thread rule: the engine's token, except ring().
class ShmNode {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::uint64_t nonce = 0;  // of the world's incarnation
    std::size_t stage_bytes = 32 << 20;
    bool named = false;
    bool unshared = false;       // private memory, no peers: where shared memory is not to be had
    std::size_t heap_bytes = 0;  // of address space for exposed buffers; 0: none
    bool pull = true;            // try whether the peers' memory can be read
  };

  // What other ranks must know to connect; sent in the rendezvous.
  struct LocalPeer {
    int rank = -1;
    std::string socket_name;
    std::uint64_t token = 0;
  };

  static Result<std::unique_ptr<ShmNode>> create(const Options& options);

  LocalPeer self() const;

  // What a message lane to a peer needs: the two pieces of memory and how to wake the peer.
  struct LanePeer {
    LaneView out;  // this rank's piece for the peer
    LaneView in;   // the peer's piece for this rank
    std::uint32_t chunk_bytes = 0;
    const Bell* bell = nullptr;
    int bell_fd = -1;  // eventfd of the peer; owned by the ShmNode
  };

  // Exchanges descriptors with every peer given (without this rank), and learns which ranks can
  // read each other's memory. Collective over them.
  Status connect(std::span<const LocalPeer> peers, Deadline deadline);

  Segment& own() { return segment_; }

  // This rank's pool of buffers. Those of its heap are read in place by the peers, if these all
  // have a heap, too: see exposes().
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

  // Whether the ranks of the node can read these bytes of this rank in place.
  bool exposes(const void* data, std::size_t bytes) const {
    return heaps_ && pool_->mapped(data, bytes);
  }

  // Whether each of these ranks of the node (world ranks) can copy from each other one's memory.
  bool pulls(std::span<const int> world_ranks) const;

  // Copies from a peer's memory. Errors as read_process().
  Status pull(int world_rank, const void* address, std::byte* into, std::size_t bytes) const;

  // The block and memory of a peer in a group; block is null while the peer has not joined.
  MappedPeer resolve(int world_rank, std::uint64_t group_key) const;

  bool has(int world_rank) const { return peers_.contains(world_rank); }

  // The peers of this node, without this rank, ascending.
  std::vector<int> peers() const;

  // Of a rank that has() knows.
  LanePeer lane(int world_rank) const;
  std::uint64_t token_of(int world_rank) const;

  // Looks which peers have died. A system call: slow path only.
  void look_for_dead();

  // Looks, and appends those that were found dead, by whatever look, since the last call.
  void poll_dead(std::vector<int>* dead);

  // What the looks found so far: how many, and who.
  std::uint32_t deaths() const { return deaths_; }

  bool is_dead(int world_rank) const;

  // Process id as this rank's namespace sees it; 0 unknown.
  int pid_of(int world_rank) const;

  // A peer's pidfd, readable once it is dead; -1 where there is none. Owned by this.
  int life_of(int world_rank) const;

  // This rank's eventfd; readable after a peer rang.
  int bell_fd() const { return bell_.get(); }

  void drain_bell() const;

  // Wakes this rank's own sleepers. Any thread.
  void ring_self() const;

  // Descriptors that become readable at a peer's death.
  void wait_descriptors(std::vector<int>* fds) const;

  // Wakes a sleeping peer. Any thread; async-signal-safe.
  static void ring(const MappedPeer& peer) { ring(peer.bell_fd); }

  static void ring(int bell_fd);

 private:
  struct Peer {
    Segment segment;
    LaneMemory lanes;
    SharedHeap heap;  // empty where it has none, or it cannot be mapped
    Fd bell;
    Fd life;  // pidfd, or the handshake's socket
    int pid = 0;
    bool dead = false;
    bool told = false;  // by poll_dead()
  };

  ShmNode() = default;

  Status connect_lower(const LocalPeer& peer, Deadline deadline, std::map<int, Fd>* waiting);
  Status accept_one(std::span<const LocalPeer> peers, Deadline deadline);
  Status send_self(const Fd& socket);
  void attach_heap(Fd fd, int rank, Peer* peer) const;
  Status probe_pulls(Deadline deadline);
  void warn_of_forbidden_pulls() const;
  const SegmentHeader& header_of(int world_rank) const;
  bool can_pull(int reader, int owner) const;
  Status receive_peer(Fd socket, std::span<const LocalPeer> peers, Deadline deadline, int* rank);

  Options options_;
  std::string socket_name_;
  Fd listener_;
  Fd bell_;
  Fd life_;
  Segment segment_;
  std::shared_ptr<BufferPool> pool_;
  bool heaps_ = false;                    // this rank and all peers have one
  std::unique_ptr<std::uint64_t> probe_;  // what peers read to see whether they can
  int refused_by_ = -1;                   // the first peer whose memory cannot be read
  int refused_errno_ = 0;                 // and why
  Fd lanes_file_;                         // until connect()
  LaneMemory lanes_;
  std::vector<int> locals_;    // world ranks of the node, ascending, with this one
  std::map<int, Peer> peers_;  // by world rank
  std::uint32_t deaths_ = 0;
};

}  // namespace isthmus
