#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "plugins/nccl/net.h"

namespace isthmus::nccl {

// A connection of the process with itself, polled by one thread as old NCCL does.
struct Pair {
  std::unique_ptr<ListenComm> listen;
  std::array<std::byte, kHandleBytes> handle{};
  std::unique_ptr<SendComm> send;
  std::unique_ptr<RecvComm> recv;

  Pair() {
    Net& net = Net::get();
    EXPECT_TRUE(net.init("test").ok());
    Result<std::unique_ptr<ListenComm>> listening = net.listen(0, handle);
    EXPECT_TRUE(listening.ok());
    listen = std::move(*listening);
    const Deadline deadline = Deadline::after_ms(10'000);
    while ((send == nullptr || recv == nullptr) && !deadline.passed(monotonic_ns())) {
      if (send == nullptr) {
        Result<std::unique_ptr<SendComm>> called = net.connect(0, handle);
        EXPECT_TRUE(called.ok()) << called.error().message;
        send = called.ok() ? std::move(*called) : nullptr;
      }
      if (recv == nullptr) {
        Result<std::unique_ptr<RecvComm>> came = Net::accept(*listen);
        EXPECT_TRUE(came.ok());
        recv = std::move(*came);
      }
    }
    EXPECT_NE(send, nullptr);
    EXPECT_NE(recv, nullptr);
  }

  ~Pair() {
    Net::close(*listen);
    Net::get().finish();
  }

  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  Pair(Pair&&) = delete;
  Pair& operator=(Pair&&) = delete;

  Request* post_send(const void* data, std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(send->mutex());
    Result<Request*> request = send->post(data, bytes);
    EXPECT_TRUE(request.ok());
    return request.ok() ? *request : nullptr;
  }

  Request* post_recv(void* data, std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(recv->mutex());
    Result<Request*> request = recv->post(data, bytes);
    EXPECT_TRUE(request.ok());
    return request.ok() ? *request : nullptr;
  }
};

// Tests until it is done, 20 s at most; its bytes, or -1.
inline std::int64_t finish(Request* request) {
  const Deadline deadline = Deadline::after_ms(20'000);
  std::uint64_t bytes = 0;
  while (!deadline.passed(monotonic_ns())) {
    const Result<bool> done = test_request(request, &bytes);
    if (!done.ok()) {
      ADD_FAILURE() << done.error().message;
      return -1;
    }
    if (*done) {
      return static_cast<std::int64_t>(bytes);
    }
  }
  ADD_FAILURE() << "a request is not done after 20 s";
  return -1;
}

}  // namespace isthmus::nccl
