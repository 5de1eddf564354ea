#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "perf/net_plugin/measure.h"
#include "perf/net_plugin/rules.h"

namespace isthmus::net_plugin {
namespace {

constexpr std::int64_t kAtOnceNs = 1'000'000'000;  // generous: machines are busy
constexpr std::size_t kUnderWay = 32;              // NCCL_NET_MAX_REQUESTS

// Waits for all, oldest first, looking at both kinds; what is wrong.
std::string wait_all(Link& link, const std::vector<void*>& requests) {
  for (void* const request : requests) {
    const Result<int> got = link.wait(request);
    if (!got.ok()) {
      return got.error().message;
    }
  }
  return "";
}

// Sends the byte that a posted receive waits for, as often as the plug-in puts it off.
std::string answer_one(Link& link, Registered& memory, void* receive) {
  const Deadline deadline = Deadline::after_ms(Link::kMessageLimitMs);
  while (!deadline.passed(monotonic_ns())) {
    const Result<void*> send = link.send(memory.data(), 1, memory.to_send());
    if (!send.ok()) {
      return send.error().message;
    }
    if (*send != nullptr) {
      return wait_all(link, {*send, receive});
    }
  }
  return "a send was put off for a minute";
}

// What one of several threads does: 8 comms of its own, messages on all of them.
std::string use_eight(NetPlugin& plugin) {
  std::vector<Link> links;
  links.reserve(8);
  for (int i = 0; i < 8; ++i) {
    Result<Link> link = Link::with_itself(plugin, 0);
    if (!link.ok()) {
      return link.error().message;
    }
    links.push_back(std::move(*link));
  }
  for (std::size_t i = 0; i < 200; ++i) {
    std::string wrong = pass_message(links[i % links.size()], 1 + i * 501, 1 + i * 501, i);
    if (!wrong.empty()) {
      return wrong;
    }
  }
  return "";
}

}  // namespace

std::string posts_at_once(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) -> std::string {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    Result<Registered> from = Registered::make(link, kBytes);
    Result<Registered> into = Registered::make(link, kBytes);
    if (!from.ok() || !into.ok()) {
      return "64 MiB could not be registered";
    }
    const std::int64_t begin = monotonic_ns();
    const Result<void*> send = link.send(from->data(), kBytes, from->to_send());
    const std::int64_t took = monotonic_ns() - begin;
    if (!send.ok()) {
      return send.error().message;
    }
    if (took > kAtOnceNs) {
      return fmt::format("isend of 64 MiB that nobody receives took {} ms", took / 1'000'000);
    }
    const Result<void*> recv = link.recv(into->data(), kBytes, into->to_recv());
    if (!recv.ok()) {
      return recv.error().message;
    }
    std::vector<void*> open = {*send, *recv};
    const Deadline deadline = Deadline::after_ms(Link::kMessageLimitMs);
    while (!open.empty() && !deadline.passed(monotonic_ns())) {
      for (std::size_t i = 0; i < open.size(); ++i) {
        const Result<bool> over = link.done(open[i], nullptr);
        if (!over.ok()) {
          return over.error().message;
        }
        if (*over) {
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
          break;
        }
      }
    }
    return open.empty() ? "" : "64 MiB did not arrive";
  });
}

std::string refuses_politely(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) -> std::string {
    constexpr std::size_t kTries = 4096;
    Result<Registered> memory = Registered::make(link, kTries);
    if (!memory.ok()) {
      return memory.error().message;
    }
    std::vector<void*> receives;
    for (std::size_t i = 0; i < kTries; ++i) {
      const Result<void*> request = link.recv(memory->data() + i, 1, memory->to_recv());
      if (!request.ok()) {
        return fmt::format("after {} receives: {}", i, request.error().message);
      }
      if (*request == nullptr) {
        break;
      }
      receives.push_back(*request);
    }
    if (receives.size() < kUnderWay) {
      return fmt::format("only {} receives could be posted, NCCL posts up to {}", receives.size(),
                         kUnderWay);
    }
    for (void* const request : receives) {
      const std::string wrong = answer_one(link, *memory, request);
      if (!wrong.empty()) {
        return wrong;
      }
    }
    return "";
  });
}

std::string keeps_the_order(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) -> std::string {
    constexpr std::size_t kRoom = 2048;
    Result<Registered> from = Registered::make(link, kUnderWay * kRoom);
    Result<Registered> into = Registered::make(link, kUnderWay * kRoom);
    if (!from.ok() || !into.ok()) {
      return "memory could not be registered";
    }
    std::vector<void*> receives;
    std::vector<void*> sends;
    for (std::size_t i = 0; i < kUnderWay; ++i) {
      const Result<void*> recv = link.recv(into->data() + i * kRoom, kRoom, into->to_recv());
      fill_pattern(from->data() + i * kRoom, 1 + i * 60, i);
      const Result<void*> send = link.send(from->data() + i * kRoom, 1 + i * 60, from->to_send());
      if (!recv.ok() || !send.ok() || *recv == nullptr || *send == nullptr) {
        return fmt::format("request {} of {} could not be posted", i + 1, kUnderWay);
      }
      receives.push_back(*recv);
      sends.push_back(*send);
    }
    for (std::size_t i = 0; i < kUnderWay; ++i) {
      const Result<int> sent = link.wait(sends[i]);
      const Result<int> got = link.wait(receives[i]);
      if (!sent.ok() || !got.ok()) {
        return sent.ok() ? got.error().message : sent.error().message;
      }
      if (*got != static_cast<int>(1 + i * 60)) {
        return fmt::format("message {} has {} B, expected {}", i, *got, 1 + i * 60);
      }
      const Status same = check_pattern(into->data() + i * kRoom, 1 + i * 60, i, "received");
      if (!same.ok()) {
        return same.error().message;
      }
    }
    return "";
  });
}

std::string takes_less(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) {
    std::string wrong = pass_message(link, 100, 4096, 1);
    return wrong.empty() ? pass_message(link, 100'000, 1 << 20, 2) : wrong;
  });
}

std::string refuses_more(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin& plugin, Link& link) -> std::string {
    constexpr std::size_t kRoom = 1024;
    Result<Registered> from = Registered::make(link, 4 * kRoom);
    Result<Registered> into = Registered::make(link, 4 * kRoom);
    if (!from.ok() || !into.ok()) {
      return "memory could not be registered";
    }
    std::memset(from->data(), 1, 4 * kRoom);
    const Result<void*> recv = link.recv(into->data(), kRoom, into->to_recv());
    const Result<void*> send = link.send(from->data(), 4 * kRoom, from->to_send());
    if (!recv.ok() || !send.ok()) {
      return "requests could not be posted";
    }
    std::string wrong = "the receiver's test reported no error within 10 s";
    const Deadline deadline = Deadline::after_ms(10'000);
    bool sent = false;
    while (!deadline.passed(monotonic_ns())) {
      int done = -1;
      int size = -1;
      if (!sent) {
        sent = plugin.test(*send, &done, &size) != 0 || done > 0;
      }
      const int result = plugin.test(*recv, &done, &size);
      if (result != 0 || done > 0) {
        wrong = result != 0 ? "" : fmt::format("the receive ended well, with {} B", size);
        break;
      }
    }
    for (std::size_t i = kRoom; i < 4 * kRoom; ++i) {
      if (into->data()[i] != std::byte{0}) {
        return fmt::format("byte {} behind the receive's {} was written", i, kRoom);
      }
    }
    return wrong;
  });
}

std::string sends_nothing(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) {
    for (std::size_t i = 0; i < 3; ++i) {
      std::string wrong = pass_message(link, 0, i * 64, i);
      if (!wrong.empty()) {
        return wrong;
      }
    }
    return pass_message(link, 64, 64, 3);
  });
}

std::string takes_a_hint(const std::string& path, int version) {
  if (version < 9) {
    return "skip: before version 9 NCCL clears the request";
  }
  return with_link(path, version, [](NetPlugin& plugin, Link& link) -> std::string {
    Result<Registered> memory = Registered::make(link, 128);
    if (!memory.ok()) {
      return memory.error().message;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): what NCCL passes
    void* const hint = reinterpret_cast<void*>(std::uintptr_t{1});
    void* request = hint;
    const int result =
        plugin.recv(link.receiver(), memory->data(), 64, 0, memory->to_recv(), &request);
    if (result != 0 || request == hint || request == nullptr) {
      return fmt::format("irecv answered {} and {}", result_name(result),
                         request == hint ? "left the 1" : "no request");
    }
    const Result<void*> send = link.send(memory->data() + 64, 64, memory->to_send());
    return send.ok() ? wait_all(link, {*send, request}) : send.error().message;
  });
}

std::string frees_the_buffer(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) -> std::string {
    constexpr std::size_t kBytes = 40'000;
    Result<Registered> from = Registered::make(link, kBytes);
    Result<Registered> into = Registered::make(link, 8 * kBytes);
    if (!from.ok() || !into.ok()) {
      return "memory could not be registered";
    }
    std::vector<void*> receives;
    for (std::size_t i = 0; i < 8; ++i) {
      const Result<void*> recv = link.recv(into->data() + i * kBytes, kBytes, into->to_recv());
      if (!recv.ok() || *recv == nullptr) {
        return "a receive could not be posted";
      }
      receives.push_back(*recv);
    }
    for (std::size_t i = 0; i < 8; ++i) {
      fill_pattern(from->data(), kBytes, i);
      const Result<void*> send = link.send(from->data(), kBytes, from->to_send());
      const Result<int> over = send.ok() ? link.wait(*send) : Result<int>(send.error());
      if (!over.ok()) {
        return over.error().message;
      }
      std::memset(from->data(), 0xee, kBytes);
    }
    for (std::size_t i = 0; i < 8; ++i) {
      const Result<int> got = link.wait(receives[i]);
      const Status same = got.ok() ? check_pattern(into->data() + i * kBytes, kBytes, i, "received")
                                   : Status(got.error());
      if (!same.ok()) {
        return same.error().message;
      }
    }
    return "";
  });
}

std::string registers(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin& plugin, Link& link) -> std::string {
    Properties properties;
    plugin.properties(0, &properties);
    std::vector<std::byte> memory(1 << 16);
    void* region = nullptr;
    int result = plugin.reg(link.sender(), memory.data(), memory.size(), kPointerHost, &region);
    if (result != 0) {
      return failed(plugin, "regMr of host memory", result).message;
    }
    result = plugin.dereg(link.sender(), region);
    if (result != 0) {
      return failed(plugin, "deregMr", result).message;
    }
    region = nullptr;
    if ((properties.pointers & kPointerCuda) == 0 &&
        plugin.reg(link.sender(), memory.data(), memory.size(), kPointerCuda, &region) == 0) {
      return "regMr took CUDA memory, which the properties exclude";
    }
    return "";
  });
}

std::string registers_meanwhile(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin& plugin, Link& link) -> std::string {
    std::atomic<bool> over{false};
    std::atomic<int> bad{0};
    std::thread beside([&] {
      std::vector<std::byte> memory(4096);
      while (!over.load()) {
        Properties properties;
        void* region = nullptr;
        const bool right =
            plugin.properties(0, &properties) == 0 &&
            plugin.reg(link.receiver(), memory.data(), memory.size(), kPointerHost, &region) == 0 &&
            plugin.dereg(link.receiver(), region) == 0;
        bad += right ? 0 : 1;
      }
    });
    std::string wrong;
    for (std::size_t i = 0; i < 200 && wrong.empty(); ++i) {
      wrong = pass_message(link, 1 + i * 97, 1 + i * 97, i);
    }
    over = true;
    beside.join();
    return wrong.empty() && bad > 0 ? fmt::format("{} calls of the other thread failed", bad.load())
                                    : wrong;
  });
}

std::string sends_a_gib(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin&, Link& link) {
    constexpr std::size_t kGib = std::size_t{1} << 30;
    return pass_message(link, kGib, kGib, 5);
  });
}

std::string serves_many(const std::string& path, int version) {
  return with_link(path, version, [](NetPlugin& plugin, Link&) {
    std::string other;
    std::thread beside([&] { other = use_eight(plugin); });
    std::string mine = use_eight(plugin);
    beside.join();
    return mine.empty() ? other : mine;
  });
}

}  // namespace isthmus::net_plugin
