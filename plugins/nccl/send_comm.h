#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "plugins/nccl/comm.h"
#include "plugins/nccl/dial.h"
#include "plugins/nccl/outbox.h"

namespace isthmus::nccl {

// The sending half of a connection. With one flow a message is over when the kernel has it. With
// several, chunks go to whichever flow is free, a lost flow's chunks to the others, and a message
// is over when the receiver has acknowledged it. Thread rule: comm.h.
class SendComm final : public Comm {
 public:
  // What a finished call hands over.
  struct Setup {
    Fd first;                      // the connection that made the comm
    Hello hello;                   // of that connection; `flow` changes for the others
    std::vector<tcp::Rail> flows;  // of each flow its rail; the first is in use already
    std::string peer;              // for texts: "10.0.0.2:4711 (pid 12)"
    bool checked = false;
  };

  explicit SendComm(Setup setup);
  ~SendComm() override;
  SendComm(const SendComm&) = delete;
  SendComm& operator=(const SendComm&) = delete;
  SendComm(SendComm&&) = delete;
  SendComm& operator=(SendComm&&) = delete;

  // Takes the message; nullptr when kRequestsMax are under way. The lock is held.
  Result<Request*> post(const void* data, std::uint64_t bytes);

  void progress() override;
  std::string describe(std::int64_t now_ns) const override;

  // The DSCP of packets, for networks that prefer some; before the first post.
  void set_traffic_class(int dscp);

  // Flows in use. The lock is held.
  unsigned live_flows() const;

  // Its descriptor, for tests that break it; -1: not there. The lock is held.
  int flow_descriptor(unsigned flow) const { return flows_[flow].fd.get(); }

 private:
  struct SendRequest : Request {
    const std::byte* data = nullptr;
    std::uint64_t part_bytes = 0;       // size of a frame's payload but the last
    std::uint32_t parts = 0;            // frames of the message, at least 1
    std::uint32_t next_part = 0;        // first that no flow has taken
    std::vector<std::uint8_t> flow_of;  // with several flows: who took each part
  };

  struct Flow {
    Fd fd;
    Outbox out;
    Dial dial;
    std::int64_t dial_at_ns = 0;
    std::int64_t backoff_ns = 0;
    bool had_one = false;  // was in use before
    std::array<std::byte, sizeof(FrameHeader)> in{};
    std::size_t in_bytes = 0;
  };

  bool several() const { return flows_.size() > 1; }

  SendRequest& slot(std::uint32_t message) { return requests_[message % kRequestsMax]; }

  void pump(unsigned flow, std::size_t* budget);
  void fill(unsigned flow);
  bool next_part(unsigned flow, SendRequest** request, std::uint32_t* part);
  FrameHeader header_of(const SendRequest& request, std::uint32_t part) const;
  void part_gone(const FrameHeader& header);
  void finish(SendRequest* request);
  void read_acks(unsigned flow);
  void acked_below(std::uint32_t message);
  void lose(unsigned flow, const std::string& why);
  void maintain(std::int64_t now_ns);
  void join(unsigned flow, std::int64_t now_ns);
  void mark(const Fd& fd) const;
  void check_health(std::int64_t now_ns);

  Setup setup_;
  std::vector<Flow> flows_;
  std::array<SendRequest, kRequestsMax> requests_{};
  std::uint32_t posted_ = 0;  // number of the next message
  std::uint32_t taking_ = 0;  // first message with parts that no flow has taken
  std::uint32_t open_ = 0;    // messages that are not done
  std::uint32_t oldest_ = 0;  // first message that is not done
  std::deque<std::pair<std::uint32_t, std::uint32_t>> resend_;  // (message, part) of lost flows
  unsigned turn_ = 0;                                           // flow that is served first
  unsigned rounds_ = 0;  // calls of progress(), to look at the clock seldom
  std::int64_t checked_ns_ = 0;
  std::uint64_t bytes_ = 0;  // written in all
  int dscp_ = -1;            // -1: as the system has it
};

}  // namespace isthmus::nccl
