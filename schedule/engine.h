#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "schedule/baton.h"
#include "schedule/channel.h"
#include "schedule/lanes.h"
#include "schedule/run.h"
#include "schedule/work.h"
#include "transport/endpoint.h"
#include "transport/shm/shm_node.h"

namespace isthmus {

struct Wait;

// Runs schedules over transports and kernels: one per world. Poll-based; the thread that holds the
// baton drives every active run of every group, others wait their turn and inherit it. A
// synchronous run is driven by its caller; asynchronous ones also by a driver thread, started with
// the first.
//
// Waiting is bounded: spin (only when ranks do not outnumber cores), yield, then sleep in poll() on
// the bell, the transports and the peers' pidfds, at most kSleepMaxMs at a time. Every run has a
// deadline. Thread rule: public functions from any thread; private ones under the baton.
class Engine {
 public:
  struct Options {
    int world_rank = 0;
    bool crowded = false;  // ranks outnumber cores: yield at once
    std::int64_t spin_ns = 50'000;
  };

  // transports: in order of preference; the last one reaches every rank.
  Engine(const Options& options, ShmNode* node, std::vector<Transport*> transports);
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add_channel(Channel* channel);

  // Ends the channel's runs with an error and forgets it. Never waits for a peer.
  void remove_channel(Channel* channel, const Error& why);

  // Runs to the end on this thread. The run's bound fields are set. The caller holds the baton.
  Status execute(Run& run);

  // Starts and returns: `run.work` is set, and finished later. The caller holds the baton.
  Status start(std::unique_ptr<Run> run);

  // Starts a point-to-point transfer. `data` is null for a receive into `into`.
  struct Transfer {
    static constexpr std::uint32_t kAnySource = 0xffffffffU;

    Channel* channel = nullptr;
    std::uint32_t peer = 0;  // group rank; kAnySource until a message for it is there
    std::uint32_t user_tag = 0;
    Tag tag;  // valid once `peer` is a rank
    OperationInfo info;
    std::span<const std::byte> data;
    std::span<std::byte> into;
    bool is_recv = false;
    std::int64_t timeout_ms = 0;
    std::int64_t deadline_ns = Deadline::kNever;
    bool posted = false;
    bool done = false;
    std::optional<Error> lost;  // its peer is gone or has left; who is to blame may yet be heard
    std::int64_t lost_ns = 0;   // since when
    WorkRef work;
  };

  // The caller holds the baton.
  void start_transfer(std::unique_ptr<Transfer> transfer);

  // Whether a transfer with a group rank may start: not in a group that is over, and not before the
  // refusal of an earlier send to it was told, here and once. The caller holds the baton.
  Status admit_transfer(Channel& channel, std::uint32_t peer) const;

  // Drives until the work is done: see Work::wait.
  Status wait(Work& work, Deadline deadline, const KeepWaiting& keep_waiting);

  // Ends a group on this rank and tells its members. The first cause stays.
  void fail_channel(Channel& channel, const Error& error, bool tell);

  // Frees what groups left behind once their peers need it no more. The caller holds the baton.
  void sweep_left();

  // Ends everything; nothing starts afterwards.
  void shutdown(const Error& why);

  // Memory for a run's operand, from the pool of scratch; it goes back when the run is over.
  // Without memory where the system has none. The caller holds the baton.
  ScratchPool::Block take_operand(std::size_t bytes) { return scratch_.take(bytes); }

  // Whether the ranks of the node can read these bytes of this rank in place.
  bool exposes(const void* data, std::size_t bytes) const { return node_->exposes(data, bytes); }

  Lanes& lanes() { return lanes_; }

  Baton& baton() { return baton_; }

 private:
  // Shared memory of a removed channel that peers may still read.
  struct Left {
    GroupBlock* own = nullptr;
    std::uint64_t key = 0;
    std::vector<int> peers;  // world ranks
    std::vector<Channel::Retired> retired;
  };

  // A rank of another node that was lost sight of. It may only have fallen with another: the first
  // cause gets a moment to be heard before this rank is named.
  struct Suspect {
    int world_rank = -1;
    Channel* channel = nullptr;  // the only one concerned, null: all
    std::int64_t since_ns = 0;
    Error error;
  };

  // A thread's progress through spin, yield and sleep since something last moved.
  struct Idle {
    std::uint32_t looks = 0;
    std::uint32_t moves = 0;      // passes that moved something, in all
    std::int64_t since_ns = 0;    // idle since then, 0: not yet asked
    std::int64_t checked_ns = 0;  // last slow look, 0: none yet
  };

  // How long whoever was lost sight of waits for its verdict.
  static constexpr std::int64_t kSuspectNs = 200'000'000;

  // How the wait of a caller ended.
  enum class Ended : std::uint8_t { kDone, kLate, kInterrupted };

  // Running.
  Status admit(Channel& channel) const;
  Status issue(Run& run);
  void enqueue(Run& run);
  bool begin(Run& run);
  bool progress();
  bool begin_pending();
  bool advance(Run& run);
  void spin_alone(Run& run);
  bool advance_in_order(Run& run);
  bool advance_dataflow(Run& run);
  bool prepare_dataflow(Run& run);
  bool run_local(Run& run, const Step& step);
  bool post(Run& run, std::uint32_t index);
  void complete_step(Run& run, std::uint32_t index);
  static bool deliver(Run& run);
  void complete(Run& run);
  void finish(Run& run);
  void finish_work(Run& run);
  void fail(Run& run, Error error);
  void retire(Run& run);
  bool resolve_peers(Channel& channel);
  static bool peers_reached(Channel& channel, std::uint32_t sequence);
  static void ask_finished(Channel& channel);
  bool lease_stage(Run& run);
  bool poll_transports();
  void handle(const Completion& completion);
  void handle_transfer(const Completion& completion);
  void finish_transfer(Transfer& transfer, std::optional<Error> error);
  bool post_transfers();
  static void bind(Transfer& transfer, std::uint32_t peer);
  bool find_source(Transfer& transfer);
  Endpoint& endpoint(Channel& channel, std::uint32_t peer);
  Transport& transport_to(int world_rank) const;

  // Steps.
  bool await(Run& run, const Step& step);
  bool await_announcements(Run& run, const Step& step);
  void publish(Run& run, const Step& step);
  static void expose(const Run& run, Announcement* mine);
  bool note_exposed(Run& run, std::uint32_t local, const Announcement& theirs);
  void fall_back(Run& run);
  bool copy(Run& run, const Step& step);
  bool pull(Run& run, const Step& step, std::byte* dst, std::size_t bytes);
  void reduce(Run& run, const Step& step);
  void reduce_to_all(Run& run, const Step& step, std::size_t bytes);
  std::uint32_t operands(Run& run, const Step& step, std::byte* dst, const void** sources) const;
  static const std::byte* exposed(const Run& run, const Place& place);
  static std::size_t input_offset(const Run& run, std::uint32_t at);
  static std::size_t length(const Run& run, const Step& step);
  std::byte* locate(Run& run, const Place& place) const;
  std::byte* mapped(Run& run, Space space, std::uint32_t local) const;
  void ring_sleepers(const Channel& channel) const;

  // Failing (failure.cc).
  void check(std::int64_t now_ns);
  void check_run(Run& run, std::int64_t now_ns);
  int find_left(const Run& run) const;
  void check_records(Channel& channel);
  void check_refused(Channel& channel, std::size_t local);
  Error first_cause(const Error& error) const;
  void suspect(int world_rank, Channel* channel, const Error& error);
  void suspect_afar(int world_rank, Channel* channel, const Error& error);
  bool departed(int world_rank) const;
  bool lost(Channel& channel, std::uint32_t peer, Code code);
  void judge_suspects(std::int64_t now_ns);
  void declare_dead(int world_rank, const Error& error);
  void on_notice(const Notice& notice);
  void settle_mismatch(Run& run, std::int64_t now_ns);
  void time_out(Run& run, std::int64_t now_ns);
  void time_out_transfer(Transfer& transfer);
  void lose_transfer(Transfer& transfer, Code code);
  void check_transfer(Transfer& transfer, std::int64_t now_ns);
  void tell(Channel& channel, std::uint32_t sequence, Notice::Kind kind, const Error& error);
  void refuse(Channel& channel, std::uint32_t sequence, const Error& error);
  void refuse_sent(Channel& channel, const Notice& notice);
  static void refuse_send(Channel& channel, const Notice& notice);
  Run* find_run(const Channel& channel, std::uint32_t sequence) const;
  void note_waiting(Run& run, std::int64_t now_ns);
  static void note_waiting_elsewhere(Channel& channel, const Notice& notice);
  void tell_waiting(Run& run, const Wait& wait, std::int64_t now_ns);

  // Waiting (waiting.cc).
  template <typename Done>
  Ended drive(const Done& done, Deadline deadline, const KeepWaiting* keep_waiting);
  void interrupt(Run& run);
  void moved(Idle& state);
  void idle(Idle& state);
  void sleep(int most_ms);
  Status open_sleeper();
  void forget_life(int world_rank);
  void driver_main();
  void ensure_driver();
  void wake_driver();

  const Options options_;
  ShmNode* const node_;
  const std::vector<Transport*> transports_;
  Baton baton_;
  Lanes lanes_;
  std::vector<Channel*> channels_;
  std::vector<Run*> runs_;                       // begun and not done, higher priority first
  std::vector<Channel*> blocked_;                // channels with pending runs
  std::vector<std::unique_ptr<Run>> owned_;      // asynchronous runs, until done
  std::vector<std::unique_ptr<Run>> graveyard_;  // done, freed by the next pass
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<std::unique_ptr<Transfer>> transfer_graveyard_;
  ScratchPool scratch_;
  std::vector<Left> left_;
  std::vector<Suspect> suspects_;
  std::vector<int> departed_;         // world ranks that said goodbye
  std::optional<Error> first_death_;  // as seen here or told by any group
  std::vector<int> dead_;             // world ranks
  Events events_;
  std::uint32_t passes_ = 0;                   // of progress(), to poll idle transports rarely
  std::size_t messaging_ = 0;                  // runs and transfers that use transports
  Fd sleeper_;                                 // epoll over bell, transports and pidfds
  std::shared_ptr<const Error> over_;          // set by shutdown()
  std::atomic<std::uint32_t> outstanding_{0};  // asynchronous works not done
  std::atomic<std::uint32_t> callers_{0};      // threads that drive inline now
  std::atomic<bool> told_{false};              // notices went to other nodes
  std::atomic<bool> stop_{false};
  std::atomic<std::uint32_t> driver_bell_{0};  // futex the driver parks on
  std::once_flag driver_once_;
  std::thread driver_;
};

}  // namespace isthmus
