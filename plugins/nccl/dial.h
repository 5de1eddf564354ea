#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "plugins/nccl/frame.h"
#include "transport/tcp/rails.h"

namespace isthmus::nccl {

// One call: TCP connection, hello, welcome. Never blocks; poll() moves it on.
// Thread rule: one owner.
class Dial {
 public:
  enum class State : std::uint8_t { kIdle, kConnecting, kAsking, kReady, kFailed };

  void start(const tcp::Rail& rail, const Hello& hello, std::int64_t now_ns);

  State poll(std::int64_t now_ns);

  State state() const { return state_; }

  // The socket, from start() on, for its near end.
  const Fd& fd() const { return fd_; }

  // The hello may be changed until the connection is there, so after start() and before poll().
  Hello* hello() { return &hello_; }

  // The connection of a call that is ready; the call is idle afterwards.
  Fd take();

  void drop();

  // Why the last call failed, as the end of a sentence.
  const std::string& why() const { return why_; }

  // Whether the other machine answered: it has no such process, or one that hung up.
  bool refused() const { return refused_; }

  std::uint32_t peer_pid() const { return welcome_.pid; }

 private:
  void fail(std::string why, bool refused);
  void connect_done();
  void read_welcome();

  State state_ = State::kIdle;
  bool refused_ = false;
  Fd fd_;
  Hello hello_;
  Welcome welcome_;
  std::size_t got_ = 0;  // bytes of the welcome
  std::int64_t until_ns_ = 0;
  std::string why_;
};

}  // namespace isthmus::nccl
