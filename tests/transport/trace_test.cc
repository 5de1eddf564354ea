// Goal: a TraceTransport records what passes, allocates nothing on the way and writes JSON that a
// parser reads. Method: two simulated ranks with the network's clock; the program's operator new is
// counted.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "transport/sim/sim_network.h"
#include "transport/trace/trace_transport.h"

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): operator new counts here
std::atomic<std::uint64_t> allocations{0};

}  // namespace

// gcc sees the malloc through the inlined operator new, and calls the pair mismatched.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace isthmus {
namespace {

constexpr std::uint64_t kOperation = make_operation(1, 1, false);

// A transport that does nothing, so that only the wrapper's allocations count.
class Hollow final : public Transport, public Endpoint {
 public:
  std::string_view name() const override { return "hollow"; }

  std::vector<std::byte> address() const override { return {}; }

  Status set_address(int /*peer*/, std::span<const std::byte> /*address*/) override { return {}; }

  Endpoint& endpoint(int /*peer*/) override { return *this; }

  bool poll(Events* events) override {
    events->completions.push_back({});
    return true;
  }

  void notify(int /*peer*/, const Notice& /*notice*/) override {}

  void wait_descriptors(std::vector<int>* /*fds*/) override {}

  void shutdown() override {}

  Result<Post> post_send(const Tag& /*tag*/, const OperationInfo& /*info*/,
                         std::span<const std::byte> /*data*/, Token /*token*/) override {
    return Post::kDone;
  }

  Result<Post> post_recv(const Tag& /*tag*/, const OperationInfo& /*info*/,
                         std::span<std::byte> /*data*/, Token /*token*/) override {
    return Post::kPosted;
  }

  bool offers(const Tag& /*tag*/) const override { return false; }

  void cancel(std::uint64_t /*operation*/) override {}
};

class Trace : public ::testing::Test {
 protected:
  Trace() : network_(config()) {
    traced_ = std::make_unique<TraceTransport>(network_.transport(0), 0, 64,
                                               [this] { return network_.now_ns(); });
    peer_ = network_.transport(1);
  }

  static SimConfig config() {
    SimConfig config;
    config.eager_bytes_max = 100;
    return config;
  }

  void drain() {
    for (int i = 0; i < 100; ++i) {
      traced_->poll(&seen_);
      peer_->poll(&peer_seen_);
    }
  }

  // One of each kind of event.
  void play() {
    Endpoint& lane = traced_->endpoint(1);
    Endpoint& back = peer_->endpoint(0);
    std::array<std::byte, 10> small{};
    EXPECT_TRUE(lane.post_send({kOperation, 0}, {}, small, {this, 0}).ok());
    EXPECT_TRUE(lane.post_recv({kOperation, 1}, {}, large_, {this, 1}).ok());
    EXPECT_TRUE(lane.post_recv({kOperation + 1, 2}, {}, small, {this, 2}).ok());
    lane.cancel(kOperation + 1);
    EXPECT_TRUE(lane.post_recv({kOperation, 3}, {}, small, {this, 3}).ok());
    EXPECT_TRUE(back.post_send({kOperation, 1}, {}, peer_large_, {}).ok());
    Notice notice;
    notice.kind = Notice::Kind::kRefused;
    notice.group = 5;
    notice.sequence = 6;
    notice.culprit = 1;
    traced_->notify(1, notice);
    peer_->notify(0, notice);
    drain();
    peer_.reset();
    for (int i = 0; i < 100; ++i) {
      traced_->poll(&seen_);
    }
    EXPECT_FALSE(lane.post_send({kOperation, 4}, {}, small, {this, 4}).ok());
    traced_->shutdown();
  }

  SimNetwork network_;
  std::unique_ptr<TraceTransport> traced_;
  std::unique_ptr<Transport> peer_;
  std::array<std::byte, 5000> large_{};
  std::array<std::byte, 5000> peer_large_{};
  Events seen_;
  Events peer_seen_;
};

TEST_F(Trace, JsonLinesHoldEverything) {
  play();
  std::istringstream lines(traced_->ring().json_lines());
  std::vector<nlohmann::json> records;
  for (std::string line; std::getline(lines, line);) {
    records.push_back(nlohmann::json::parse(line));
  }
  EXPECT_EQ(records.size(), traced_->ring().size());
  std::vector<std::string> events;
  std::int64_t before_ns = 0;
  for (const nlohmann::json& record : records) {
    EXPECT_EQ(record["rank"], 0);
    EXPECT_GE(record["at_ns"].get<std::int64_t>(), before_ns);
    before_ns = record["at_ns"].get<std::int64_t>();
    events.push_back(record["event"].get<std::string>());
  }
  const auto find = [&](const std::string& event, std::size_t nth) {
    for (const nlohmann::json& record : records) {
      if (record["event"] == event && nth-- == 0) {
        return record;
      }
    }
    ADD_FAILURE() << "no " << event;
    return nlohmann::json();
  };
  EXPECT_EQ(find("post_send", 0)["answer"], "done");
  EXPECT_EQ(find("post_send", 0)["bytes"], 10);
  EXPECT_EQ(find("post_send", 1)["answer"], "error");
  EXPECT_EQ(find("post_send", 1)["failed"], "peer dead");
  EXPECT_EQ(find("post_recv", 0)["message"], 1);
  EXPECT_EQ(find("cancel", 0)["operation"], kOperation + 1);
  const nlohmann::json received = find("completion", 0);
  EXPECT_EQ(received["peer"], 1);
  EXPECT_EQ(received["direction"], "recv");
  EXPECT_EQ(received["message"], 1);
  EXPECT_EQ(received["bytes"], 5000);
  EXPECT_GT(received["took_ns"].get<std::int64_t>(), 0);
  EXPECT_EQ(find("completion", 1)["failed"], "peer dead");
  EXPECT_EQ(find("completion", 1)["message"], 3);
  EXPECT_EQ(find("notice_out", 0)["sequence"], 6);
  EXPECT_EQ(find("notice_in", 0)["group"], 5);
  EXPECT_EQ(find("notice_in", 0)["culprit"], 1);
  EXPECT_EQ(find("dead", 0)["peer"], 1);
  EXPECT_EQ(events.back(), "shutdown");
}

TEST_F(Trace, ChromeFormatParsesAndPairsSpans) {
  play();
  const std::string path = ::testing::TempDir() + "isthmus_trace_test.json";
  ASSERT_TRUE(traced_->ring().write(path, TraceRing::Format::kChrome).ok());
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  int begins = 0;
  int ends = 0;
  bool large = false;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    begins += event["ph"] == "b" ? 1 : 0;
    ends += event["ph"] == "e" ? 1 : 0;
    large = large || event["name"] == "recv 5000 B";
  }
  EXPECT_EQ(begins, 2);
  EXPECT_EQ(ends, 2);
  EXPECT_TRUE(large);
  const Status status = traced_->ring().write("/dev/null/x", TraceRing::Format::kChrome);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("/dev/null/x"), std::string::npos);
}

TEST(TraceRing, KeepsTheLast) {
  TraceRing ring(3, 5);
  for (std::uint32_t i = 0; i < 20; ++i) {
    TraceRecord record;
    record.tag.message = i;
    ring.add(record);
  }
  EXPECT_EQ(ring.size(), 8U);
  EXPECT_EQ(ring.lost(), 12U);
  for (std::size_t i = 0; i < ring.size(); ++i) {
    EXPECT_EQ(ring.at(i).tag.message, 12 + i);
  }
}

TEST(TraceTransport, AllocatesNothingOnTheWay) {
  TraceTransport traced(std::make_unique<Hollow>(), 0, 128);
  Endpoint& lane = traced.endpoint(1);
  std::array<std::byte, 8> data{};
  const Notice notice;
  Events events;
  events.completions.reserve(4);
  const std::uint64_t before = allocations.load();
  for (std::uint32_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(lane.post_send({kOperation, i}, {}, data, {}).ok());
    EXPECT_TRUE(lane.post_recv({kOperation, i}, {}, data, {}).ok());
    traced.poll(&events);
    events.clear();
    traced.notify(1, notice);
    lane.cancel(kOperation);
  }
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(traced.ring().size(), 128U);
}

}  // namespace
}  // namespace isthmus
