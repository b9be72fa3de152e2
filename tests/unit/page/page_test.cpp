// Plots and pages: round ticks, whole curves, and nothing that is not escaped.
#include "page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "page/plot.h"

namespace octet::page {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Plot, TicksAreRound) {
  EXPECT_THAT(ticks_to(10), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks_to(0.07, 4), ElementsAre(0, 0.02, 0.04, 0.06, 0.08));
  EXPECT_THAT(ticks_to(0), Not(ElementsAre()));
  EXPECT_GE(ticks_to(1234567).back(), 1234567);
  EXPECT_LE(ticks_to(1e-9).size(), 8u);
}

TEST(Plot, ACumulativeCurveEndsAtAll) {
  std::vector<double> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const Series series = cumulative("x", values, 1, 50);
  EXPECT_EQ(series.points.size(), 51u);
  EXPECT_EQ(series.points.back(), std::pair(999.0, 100.0));
  EXPECT_TRUE(cumulative("x", {}, 1).points.empty());
}

TEST(Page, AllTextIsEscaped) {
  const std::string bad = "<script>\"'&";
  const HeatMap map{bad, bad, {bad}, {bad}, {{0.25}}};
  const std::string html = document(
      bad, {{bad, bad}},
      heading(bad) + paragraph(bad) + tiles({{bad, bad}}) + table({bad}, {{bad}}) + heat_map(map) +
          plots({svg_of({.title = bad, .x_label = bad, .y_label = bad})}) + texts({bad}, {{bad}}));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;&quot;&#39;&amp;"));
  EXPECT_THAT(html, HasSubstr("25 %"));
  for (const char* outside : {"http:", "https:", "src=", "<link"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

TEST(Page, AHeatMapHasNothingWhereNothingWasMeasured) {
  const std::string html = heat_map({"", "", {"a", "b"}, {"r"}, {{1.0, std::nullopt}}});
  EXPECT_THAT(html, HasSubstr("100 %"));
  EXPECT_THAT(html, HasSubstr("<td></td>"));
}

}  // namespace
}  // namespace octet::page
