#include "perf/net_plugin/rules.h"

#include <fmt/format.h>

#include "perf/net_plugin/checks.h"
#include "perf/net_plugin/measure.h"

namespace isthmus::net_plugin {

std::string with_link(const std::string& path, int version, const Body& body) {
  Result<std::unique_ptr<NetPlugin>> plugin = NetPlugin::load(path, version);
  if (!plugin.ok()) {
    return plugin.error().message;
  }
  int result = (*plugin)->init();
  if (result != 0) {
    return failed(**plugin, "init", result).message;
  }
  int count = -1;
  result = (*plugin)->devices(&count);
  if (result != 0 || count < 1) {
    return fmt::format("devices answered {}, {} of them", result_name(result), count);
  }
  std::string wrong;
  {
    Result<Link> link = Link::with_itself(**plugin, 0);
    if (!link.ok()) {
      return link.error().message;
    }
    wrong = body(**plugin, *link);
    result = link->close();
    if (wrong.empty() && result != 0) {
      wrong = failed(**plugin, "close", result).message;
    }
  }
  result = (*plugin)->finalize();
  if (wrong.empty() && result != 0) {
    wrong = failed(**plugin, "finalize", result).message;
  }
  return wrong;
}

namespace {

// Looks at both in turn: the sender's and the receiver's progress may need each other.
std::string wait_both(Link& link, void* send, void* recv, int* got) {
  const Deadline deadline = Deadline::after_ms(Link::kMessageLimitMs);
  Result<bool> sent = false;
  Result<bool> came = false;
  while (!*sent || !*came) {
    if (!*sent) {
      sent = link.done(send, nullptr);
    }
    if (!*came) {
      came = link.done(recv, got);
    }
    if (!sent.ok() || !came.ok()) {
      return sent.ok() ? came.error().message : sent.error().message;
    }
    if (deadline.passed(monotonic_ns())) {
      return *sent ? "the receive did not end" : "the send did not end";
    }
  }
  return "";
}

}  // namespace

std::string pass_message(Link& link, std::size_t bytes, std::size_t room, std::size_t number) {
  Result<Registered> from = Registered::make(link, std::max<std::size_t>(bytes, 1));
  Result<Registered> into = Registered::make(link, std::max<std::size_t>(room, 1));
  if (!from.ok() || !into.ok()) {
    return from.ok() ? into.error().message : from.error().message;
  }
  fill_pattern(from->data(), bytes, number);
  const Result<void*> recv = link.recv(into->data(), room, into->to_recv());
  const Result<void*> send = link.send(from->data(), bytes, from->to_send());
  for (const Result<void*>& request : {recv, send}) {
    if (!request.ok()) {
      return request.error().message;
    }
    if (*request == nullptr) {
      return "the first request of an idle comm was put off";
    }
  }
  int got = -1;
  const std::string wrong = wait_both(link, *send, *recv, &got);
  if (!wrong.empty()) {
    return fmt::format("a message of {} B: {}", bytes, wrong);
  }
  if (got != static_cast<int>(bytes)) {
    return fmt::format("test says {} B of a message of {} B", got, bytes);
  }
  const Status same = check_pattern(into->data(), bytes, number, "received");
  return same.ok() ? "" : same.error().message;
}

const std::vector<Check>& checks() {
  static const std::vector<Check> all = {
      {"joins", "connect and accept return at once, null until joined, polled in turn", 40,
       joins_in_turn},
      {"listens_again", "a listening comm is accepted more than once, and closed without", 60,
       listens_again},
      {"strangers", "strangers at the port neither stall nor break a connection", 60,
       drops_strangers},
      {"posts", "isend and irecv return at once, whatever the size", 40, posts_at_once},
      {"put_off", "a full queue is answered by success and a null request", 40, refuses_politely},
      {"order", "32 requests under way match in the order of posting", 40, keeps_the_order},
      {"less", "a shorter message than the receive is reported with its size", 40, takes_less},
      {"more", "a longer one is an error of the receiver and overruns nothing", 40, refuses_more},
      {"nothing", "messages of no bytes match, end and report 0", 40, sends_nothing},
      {"hint", "a request that is preset to 1 is replaced by a valid one", 40, takes_a_hint},
      {"reuse", "a buffer whose send is done may be written", 40, frees_the_buffer},
      {"register", "host memory is registered, other memory as the properties say", 40, registers},
      {"register_beside", "registering and properties from another thread", 40,
       registers_meanwhile},
      {"close_in_flight", "comms with requests under way are closed at once", 40, closes_in_flight},
      {"again", "it starts again after its end, and after dlclose", 60, starts_again},
      {"fork", "a forked child that ends disturbs nothing", 40, survives_a_fork},
      {"descriptors", "descriptors are closed on exec", 40, closes_descriptors},
      {"dead_peer", "a killed peer is an error within 3 s", 40, names_a_dead_peer},
      {"quiet", "nothing is printed to stdout", 40, is_quiet},
      {"properties", "properties are complete", 40, states_properties},
      {"gib", "a message of 1 GiB", 120, sends_a_gib},
      {"many", "8 comms on each of 2 threads", 90, serves_many},
  };
  return all;
}

}  // namespace isthmus::net_plugin
