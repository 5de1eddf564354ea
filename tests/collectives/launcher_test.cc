// Goal: rank and size are taken from whoever started the job, and what is missing, wrong or in
// conflict is a sentence with the variables in it.
// Method: sets the variables of each launcher in this process, which has none of them before.

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/world.h"

namespace isthmus {
namespace {

struct Row {
  const char* name;
  const char* rank;
  const char* size;
};

// In order of preference.
constexpr std::array<Row, 5> kRows = {{{"torchrun", "RANK", "WORLD_SIZE"},
                                       {"OpenMpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                       {"Pmi", "PMI_RANK", "PMI_SIZE"},
                                       {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
                                       {"Mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}}};

constexpr const char* kOthers[] = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
                                   "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"};

// Every test begins and ends without any of the variables.
class LauncherTest : public ::testing::Test {
 protected:
  LauncherTest() { clear(); }

  ~LauncherTest() override { clear(); }

  static void set(const char* name, const std::string& value) {
    ASSERT_EQ(::setenv(name, value.c_str(), 1), 0);
  }

  static void clear() {
    for (const Row& row : kRows) {
      ::unsetenv(row.rank);
      ::unsetenv(row.size);
    }
    for (const char* name : kOthers) {
      ::unsetenv(name);
    }
  }

  // The sentence in which the options are refused.
  static std::string refusal() {
    const Result<WorldOptions> options = options_from_launcher();
    if (options.ok()) {
      return "accepted";
    }
    EXPECT_EQ(options.error().code, Code::kInvalidArgument);
    return options.error().message;
  }

  static std::string refusal_of_world() {
    const Result<std::unique_ptr<World>> world = World::from_launcher();
    if (world.ok()) {
      return "accepted";
    }
    EXPECT_EQ(world.error().code, Code::kInvalidArgument);
    return world.error().message;
  }

  static void expect_says(const std::string& sentence, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(sentence.find(part), std::string::npos) << part << " is not in: " << sentence;
    }
  }
};

class LauncherRow : public LauncherTest, public ::testing::WithParamInterface<Row> {};

TEST_P(LauncherRow, GivesRankAndSize) {
  set(GetParam().rank, "2");
  set(GetParam().size, "4");
  const Result<WorldOptions> options = options_from_launcher();
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->rank, 2);
  EXPECT_EQ(options->size, 4);
  EXPECT_EQ(options->incarnation, "");
}

TEST_P(LauncherRow, RefusesWhatIsNoRankOfTheJob) {
  const std::pair<const char*, const char*> wrong[] = {
      {"4", "4"},  {"-1", "4"}, {"0", "0"},   {"one", "4"},         {"1", "many"},
      {"1x", "4"}, {"1", "4 "}, {"1.0", "4"}, {"99999999999", "4"}, {"0", "99999999999"}};
  for (const auto& [rank, size] : wrong) {
    set(GetParam().rank, rank);
    set(GetParam().size, size);
    const std::string sentence = refusal();
    expect_says(sentence,
                {std::string(GetParam().rank) + "='" + rank + "'",
                 std::string(GetParam().size) + "='" + size + "'", "expected 0 <= rank < size"});
  }
}

TEST_P(LauncherRow, OneOfTheTwoIsNoLauncher) {
  for (const bool rank : {true, false}) {
    clear();
    set(rank ? GetParam().rank : GetParam().size, "1");
    expect_says(refusal(),
                {"no launcher found", "torchrun, mpirun or srun", "RANK, WORLD_SIZE, MASTER_ADDR"});
  }
}

TEST_P(LauncherRow, NeedsAPlaceToMeet) {
  set(GetParam().rank, "1");
  set(GetParam().size, "2");
  expect_says(refusal_of_world(), {"MASTER_ADDR=''", "MASTER_PORT=''", "free port of rank 0"});
  set("MASTER_ADDR", "127.0.0.1");
  for (const char* port : {"", "0", "-1", "65536", "http"}) {
    set("MASTER_PORT", port);
    expect_says(refusal_of_world(),
                {"MASTER_ADDR='127.0.0.1'", std::string("MASTER_PORT='") + port + "'"});
  }
  ::unsetenv("MASTER_ADDR");
  set("MASTER_PORT", "29500");
  expect_says(refusal_of_world(), {"MASTER_ADDR=''", "MASTER_PORT='29500'"});
}

TEST_P(LauncherRow, OneRankMeetsNobody) {
  set(GetParam().rank, "0");
  set(GetParam().size, "1");
  const Result<std::unique_ptr<World>> world = World::from_launcher();
  ASSERT_TRUE(world.ok()) << world.error().message;
  EXPECT_EQ((*world)->rank(), 0);
  EXPECT_EQ((*world)->size(), 1);
}

INSTANTIATE_TEST_SUITE_P(Table, LauncherRow, ::testing::ValuesIn(kRows),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_F(LauncherTest, NothingSetSaysWhatToDo) {
  expect_says(refusal(), {"no launcher found", "torchrun, mpirun or srun", "MASTER_PORT"});
  expect_says(refusal_of_world(), {"no launcher found"});
}

// mpirun inside an srun allocation, or RANK set by hand under mpirun: the nearer one counts.
TEST_F(LauncherTest, TheEarlierRowCounts) {
  for (std::size_t later = kRows.size(); later-- > 0;) {
    set(kRows[later].rank, std::to_string(later));
    set(kRows[later].size, std::to_string(10 + later));
    const Result<WorldOptions> options = options_from_launcher();
    ASSERT_TRUE(options.ok()) << options.error().message;
    EXPECT_EQ(options->rank, static_cast<int>(later));
    EXPECT_EQ(options->size, static_cast<int>(10 + later));
  }
}

// A wrong value is not passed over for another launcher's, half a pair is.
TEST_F(LauncherTest, OnlyAWholePairCounts) {
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_SIZE", "2");
  set("RANK", "5");
  const Result<WorldOptions> options = options_from_launcher();
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->rank, 1);
  EXPECT_EQ(options->size, 2);
  set("WORLD_SIZE", "3");
  expect_says(refusal(), {"RANK='5'", "WORLD_SIZE='3'"});
}

TEST_F(LauncherTest, RestartsAreIncarnations) {
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  set("TORCHELASTIC_RESTART_COUNT", "3");
  const Result<WorldOptions> options = options_from_launcher();
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->incarnation, "3");
}

}  // namespace
}  // namespace isthmus
