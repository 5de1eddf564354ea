// Goal: the probe tells what this process may use. Method: compare with sched_getaffinity, the
// kernel's boot id and uname, also under a narrowed cpu mask.

#include "topology/machine.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/utsname.h>

namespace isthmus {
namespace {

TEST(MachineTest, AgreesWithTheKernel) {
  const Result<Machine> machine = Machine::probe();
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  EXPECT_EQ(machine->hardware_threads, CPU_COUNT(&mask));
  EXPECT_GE(machine->cores, 1);
  EXPECT_LE(machine->cores, machine->hardware_threads);
  EXPECT_GE(machine->numa_nodes, 1);
  utsname names{};
  ASSERT_EQ(uname(&names), 0);
  EXPECT_EQ(machine->host_name, names.nodename);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(file, boot_id);
  EXPECT_EQ(machine->boot_id, boot_id);
}

TEST(MachineTest, CountsOnlyTheCpuMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  std::size_t first = 0;
  while (!CPU_ISSET(first, &mask)) {
    ++first;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const Result<Machine> machine = Machine::probe();
  ASSERT_EQ(sched_setaffinity(0, sizeof(mask), &mask), 0);
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  EXPECT_EQ(machine->hardware_threads, 1);
  EXPECT_EQ(machine->cores, 1);
}

TEST(MachineTest, PrintsJson) {
  const Result<Machine> machine = Machine::probe();
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  const nlohmann::json json = nlohmann::json::parse(machine->to_json());
  EXPECT_EQ(json.at("cores").get<int>(), machine->cores);
  EXPECT_EQ(json.at("host").get<std::string>(), machine->host_name);
}

}  // namespace
}  // namespace isthmus
