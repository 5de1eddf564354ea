#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/nccl/comm.h"
#include "plugins/nccl/inbox.h"
#include "plugins/nccl/mailbox.h"
#include "transport/tcp/chunk_set.h"

namespace isthmus::nccl {

// The receiving half of a connection. Payloads are read straight into the posted buffers, together
// with the header that follows; small messages come many at a time through the inbox. Never writes
// beyond the bytes that were sent, although the buffer may be longer: NCCL polls some of them.
// Thread rule: comm.h.
class RecvComm final : public Comm {
 public:
  // `mailbox`: where the comm's further flows arrive.
  RecvComm(Arrival first, std::shared_ptr<Mailbox> mailbox);
  ~RecvComm() override;
  RecvComm(const RecvComm&) = delete;
  RecvComm& operator=(const RecvComm&) = delete;
  RecvComm(RecvComm&&) = delete;
  RecvComm& operator=(RecvComm&&) = delete;

  // Gives a buffer for the next message; nullptr when kRequestsMax are under way. The lock is held.
  Result<Request*> post(void* data, std::uint64_t capacity);

  void progress() override;
  std::string describe(std::int64_t now_ns) const override;

 private:
  struct RecvRequest : Request {
    std::byte* data = nullptr;
    std::uint64_t capacity = 0;
    std::uint64_t moved = 0;  // bytes that are there
    tcp::ChunkSet chunks;     // with several flows: which
  };

  // A payload of a message that nobody has posted yet, read so that what is behind it in its flow
  // can be: see may_stash().
  struct Stashed {
    FrameHeader header;
    std::vector<std::byte> payload;
  };

  struct Flow {
    Fd fd;
    Inbox in;
    bool in_frame = false;  // `header` is valid and its payload is not whole
    bool blocked = false;   // `header` is valid and waits for its buffer
    bool ended = false;     // the peer sends no more
    bool ack_due = false;   // the last ack did not fit into the socket
    FrameHeader header;
    std::byte* start = nullptr;      // of the payload; nullptr: it is dropped
    std::uint64_t got = 0;           // of the payload
    RecvRequest* request = nullptr;  // nullptr: dropped, or stashed
    std::unique_ptr<Stashed> stash;
    std::int64_t blocked_ns = 0;
    int error = 0;
  };

  RecvRequest& slot(std::uint32_t message) { return requests_[message % kRequestsMax]; }

  void pump(Flow* flow, std::size_t* budget);
  bool drain(Flow* flow);
  bool begin_frame(Flow* flow);
  bool bind(Flow* flow);
  bool place(Flow* flow, RecvRequest* request);
  bool may_stash(const Flow& flow) const;
  bool finish_frame(Flow* flow);
  void complete(RecvRequest* request);
  void apply_stash(std::uint32_t message);
  std::ptrdiff_t read(Flow* flow, std::size_t* asked);
  bool lawful(const FrameHeader& header) const;
  void lose(Flow* flow);
  void take_flows();
  void send_acks();

  std::shared_ptr<Mailbox> mailbox_;
  Hello hello_;
  std::string peer_;
  bool several_ = false;
  std::vector<std::unique_ptr<Flow>> flows_;  // by number; nullptr: not there
  std::vector<std::unique_ptr<Stashed>> stash_;
  std::array<RecvRequest, kRequestsMax> requests_{};
  std::uint32_t posted_ = 0;
  std::uint32_t oldest_ = 0;      // all messages below are whole
  std::uint32_t open_ = 0;        // posted and not whole
  std::uint64_t last_bytes_ = 0;  // of the message that came last: how much to read ahead
  bool ack_due_ = false;          // an ack has to be sent to some flow
  bool ack_fresh_ = false;        // to all of them: more is whole than the last one said
  std::uint64_t bytes_ = 0;
};

}  // namespace isthmus::nccl
