// Goal: over several flows every byte arrives, in order, whatever flow is lost on the way. Method:
// one process connected to itself by three connections; some are shut down in mid-transfer.
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/nccl/pair.h"

namespace isthmus::nccl {
namespace {

constexpr unsigned kWindow = 8;

// Before anything reads the environment.
const bool kThreeFlows = ::setenv("ISTHMUS_FLOWS", "3", 1) == 0;

struct Stream {
  Pair pair;
  std::mt19937 random;
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
  std::vector<Request*> sends;
  std::vector<Request*> recvs;
  unsigned sent = 0;
  unsigned received = 0;

  Stream(unsigned messages, unsigned seed) : random(seed) {
    for (unsigned i = 0; i < messages; ++i) {
      const std::size_t bytes = random() % 4 == 0 ? random() % 2'000'000 : random() % 5000;
      out.emplace_back(bytes);
      for (std::size_t at = 0; at < bytes; ++at) {
        out[i][at] = static_cast<std::byte>((at * 13 + at / 255 + i) & 0xff);
      }
      in.emplace_back(bytes + 8, std::byte{0xee});
    }
  }

  bool over() const { return sent == out.size() && received == out.size(); }

  // One round of a caller that keeps kWindow under way and tests the oldest.
  bool round() {
    while (sends.size() < out.size() && sends.size() < sent + kWindow) {
      sends.push_back(pair.post_send(out[sends.size()].data(), out[sends.size()].size()));
    }
    while (recvs.size() < in.size() && recvs.size() < received + kWindow) {
      recvs.push_back(pair.post_recv(in[recvs.size()].data(), in[recvs.size()].size()));
    }
    std::uint64_t bytes = 0;
    for (const bool sending : {true, false}) {
      unsigned& done = sending ? sent : received;
      const std::vector<Request*>& posted = sending ? sends : recvs;
      if (done == posted.size()) {
        continue;
      }
      const Result<bool> got = test_request(posted[done], &bytes);
      if (!got.ok() || (*got && bytes != out[done].size())) {
        ADD_FAILURE() << (got.ok() ? "wrong size" : got.error().message);
        return false;
      }
      done += *got ? 1U : 0U;
    }
    return true;
  }

  void check() const {
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(out[i].empty() || std::memcmp(out[i].data(), in[i].data(), out[i].size()) == 0)
          << "message " << i;
      ASSERT_EQ(in[i][out[i].size()], std::byte{0xee}) << "written beyond message " << i;
    }
  }

  unsigned flows() {
    const std::lock_guard<std::mutex> lock(pair.send->mutex());
    return pair.send->live_flows();
  }

  void cut(unsigned flow) {
    const std::lock_guard<std::mutex> lock(pair.send->mutex());
    if (pair.send->live_flows() > 1 && pair.send->flow_descriptor(flow) >= 0) {
      ::shutdown(pair.send->flow_descriptor(flow), SHUT_RDWR);
    }
  }
};

TEST(Flows, AllBytesArriveOverThree) {
  ASSERT_TRUE(kThreeFlows);
  Stream stream(200, 1);
  const Deadline deadline = Deadline::after_ms(30'000);
  unsigned most = 0;
  while (!stream.over() && !deadline.passed(monotonic_ns())) {
    ASSERT_TRUE(stream.round());
    most = std::max(most, stream.flows());
  }
  EXPECT_TRUE(stream.over());
  EXPECT_EQ(most, 3U);
  stream.check();
}

TEST(Flows, LostOnesCostNoByteAndComeBack) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Stream stream(150, seed);
    std::mt19937 random(seed);
    const Deadline deadline = Deadline::after_ms(40'000);
    unsigned rounds = 0;
    while (!stream.over() && !deadline.passed(monotonic_ns())) {
      ASSERT_TRUE(stream.round());
      if (++rounds % 200 == 0 && stream.flows() > 1) {
        stream.cut(static_cast<unsigned>(random() % 3));
      }
    }
    EXPECT_TRUE(stream.over()) << stream.sent << " sent, " << stream.received << " received";
    stream.check();
  }
}

}  // namespace
}  // namespace isthmus::nccl
