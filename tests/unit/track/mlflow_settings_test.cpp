#include "track/mlflow_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class MlflowSettingsTest : public testing::Test {
 protected:
  RunFolder folder_;
  base::Environment environment_ = {{"MLFLOW_TRACKING_URI", "http://host:5000/"}};
};

TEST_F(MlflowSettingsTest, HasDefaults) {
  TrackerOptions options = folder_.new_run();
  options.run_name = "mine";
  const MlflowSettings settings = mlflow_settings(options, environment_);
  EXPECT_EQ(settings.tracking_uri, "http://host:5000");
  EXPECT_EQ(settings.experiment_name, "Default");
  EXPECT_EQ(settings.run_name, "mine");
  EXPECT_EQ(settings.run_id, "");
}

TEST_F(MlflowSettingsTest, ReadsTheVariables) {
  environment_.set("MLFLOW_EXPERIMENT_NAME", "e");
  environment_.set("MLFLOW_RUN_NAME", "r");
  environment_.set("MLFLOW_RUN_ID", "id");
  environment_.set("MLFLOW_TRACKING_USERNAME", "u");
  environment_.set("MLFLOW_TRACKING_PASSWORD", "p");
  environment_.set("MLFLOW_TRACKING_TOKEN", "t");
  const MlflowSettings settings = mlflow_settings(folder_.new_run(), environment_);
  EXPECT_EQ(settings.experiment_name, "e");
  EXPECT_EQ(settings.run_name, "r");
  EXPECT_EQ(settings.run_id, "id");
  EXPECT_TRUE(settings.run_id_is_asked_for);
  EXPECT_EQ(settings.credentials.username, "u");
  EXPECT_EQ(settings.credentials.password, "p");
  EXPECT_EQ(settings.credentials.token, "t");
}

TEST_F(MlflowSettingsTest, SaysWhichAddressItNeeds) {
  for (const char* uri : {"", "./mlruns", "sqlite:///mlflow.db", "databricks", "localhost:5000"}) {
    environment_.set("MLFLOW_TRACKING_URI", uri);
    EXPECT_THAT([&] { mlflow_settings(folder_.new_run(), environment_); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("MLFLOW_TRACKING_URI"), HasSubstr(uri))));
  }
}

TEST_F(MlflowSettingsTest, AResumedRunFindsItsId) {
  save_run_id(mlflow_settings(folder_.new_run(), environment_), "before");
  const MlflowSettings resumed = mlflow_settings(folder_.resumed_at(3), environment_);
  EXPECT_EQ(resumed.run_id, "before");
  EXPECT_FALSE(resumed.run_id_is_asked_for);
  EXPECT_EQ(mlflow_settings(folder_.new_run(), environment_).run_id, "");
  environment_.set("MLFLOW_TRACKING_URI", "http://another:5000");
  EXPECT_EQ(mlflow_settings(folder_.resumed_at(3), environment_).run_id, "");
}

TEST_F(MlflowSettingsTest, ABrokenIdFileIsNone) {
  for (const char* content :
       {"", "{", "[]", R"({"tracking_uri": "http://host:5000", "run_id": 3})", R"({"tracking_uri": 1})"}) {
    folder_.put("mlflow_run.json", content);
    EXPECT_EQ(mlflow_settings(folder_.resumed_at(3), environment_).run_id, "");
  }
}

TEST_F(MlflowSettingsTest, APasswordIsNeitherShownNorKept) {
  environment_.set("MLFLOW_TRACKING_URI", "https://me:secret@host/path@x");
  const MlflowSettings settings = mlflow_settings(folder_.new_run(), environment_);
  EXPECT_EQ(settings.tracking_uri, "https://me:secret@host/path@x");
  EXPECT_EQ(without_credentials(settings.tracking_uri), "https://host/path@x");
  EXPECT_EQ(without_credentials("http://host/a@b"), "http://host/a@b");
  save_run_id(settings, "id");
  EXPECT_EQ(folder_.content_of("mlflow_run.json").find("secret"), std::string::npos);
  EXPECT_EQ(mlflow_settings(folder_.resumed_at(1), environment_).run_id, "id");
}

}  // namespace
}  // namespace lockstep::track
