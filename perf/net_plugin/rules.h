#pragma once

#include <functional>
#include <memory>
#include <string>

#include "perf/net_plugin/link.h"
#include "perf/net_plugin/net_plugin.h"

namespace isthmus::net_plugin {

// What the checks share. Each returns what is wrong, empty for nothing.

using Body = std::function<std::string(NetPlugin&, Link&)>;

// A plug-in that is initialised, and a connection of this process with itself on device 0.
std::string with_link(const std::string& path, int version, const Body& body);

// One message of a pattern from the link to itself, into `room` bytes; it must arrive whole.
std::string pass_message(Link& link, std::size_t bytes, std::size_t room, std::size_t number);

// The rules, in two files by what they are about.
std::string joins_in_turn(const std::string& path, int version);
std::string listens_again(const std::string& path, int version);
std::string drops_strangers(const std::string& path, int version);
std::string is_quiet(const std::string& path, int version);
std::string closes_descriptors(const std::string& path, int version);
std::string states_properties(const std::string& path, int version);
std::string starts_again(const std::string& path, int version);
std::string survives_a_fork(const std::string& path, int version);
std::string names_a_dead_peer(const std::string& path, int version);
std::string closes_in_flight(const std::string& path, int version);

std::string posts_at_once(const std::string& path, int version);
std::string refuses_politely(const std::string& path, int version);
std::string keeps_the_order(const std::string& path, int version);
std::string takes_less(const std::string& path, int version);
std::string refuses_more(const std::string& path, int version);
std::string sends_nothing(const std::string& path, int version);
std::string takes_a_hint(const std::string& path, int version);
std::string frees_the_buffer(const std::string& path, int version);
std::string registers(const std::string& path, int version);
std::string registers_meanwhile(const std::string& path, int version);
std::string sends_a_gib(const std::string& path, int version);
std::string serves_many(const std::string& path, int version);

}  // namespace isthmus::net_plugin
