// SPDX-License-Identifier: Apache-2.0
// docs/seeds.md: no empty cell, and what it names is there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

fs::path root() {
  const std::string here = __FILE__;
  return fs::path(here.substr(0, here.rfind("src/backend/"))) / "";
}

std::vector<std::string> lines_of_page() {
  std::ifstream file(root() / "docs/seeds.md");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::size_t begin = 1;
  for (std::size_t end = line.find('|', begin); end != std::string::npos;
       begin = end + 1, end = line.find('|', begin)) {
    const std::string cell = line.substr(begin, end - begin);
    const std::size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos
                        ? ""
                        : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

std::set<std::string> names_of_tests() {
  std::set<std::string> names;
  const auto& unit = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const auto& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      names.insert(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
    }
  }
  return names;
}

TEST(SeedsPageTest, EveryRowHasFourCells) {
  int rows = 0;
  for (const std::string& line : lines_of_page()) {
    if (line.rfind("| ", 0) != 0) continue;
    const std::vector<std::string> cells = cells_of(line);
    ASSERT_EQ(cells.size(), 4U) << line;
    for (const std::string& cell : cells) EXPECT_NE(cell, "") << line;
    ++rows;
  }
  if (rows == 0) GTEST_SKIP() << "the sources are not on this machine";
  EXPECT_GT(rows, 90);
}

TEST(SeedsPageTest, EveryTestAndFileThatItNamesExists) {
  const std::set<std::string> tests = names_of_tests();
  const std::regex code("`([^`]+)`");
  for (const std::string& line : lines_of_page()) {
    if (line.rfind("| ", 0) != 0 || line.rfind("| ---", 0) == 0) continue;
    const std::vector<std::string> cells = cells_of(line);
    ASSERT_EQ(cells.size(), 4U) << line;
    if (cells[3] == "test") continue;  // a table's head
    for (std::size_t column : {std::size_t{2}, std::size_t{3}}) {
      int named = 0;
      for (std::sregex_iterator at(cells[column].begin(), cells[column].end(), code), end;
           at != end; ++at) {
        const std::string what = (*at)[1];
        const bool is_file = column == 2 || what.rfind("tests/", 0) == 0;
        if (is_file) {
          EXPECT_TRUE(fs::exists(root() / what)) << what;
        } else {
          EXPECT_TRUE(tests.contains(what)) << what;
        }
        ++named;
      }
      EXPECT_GT(named, 0) << line;
    }
  }
}

}  // namespace
