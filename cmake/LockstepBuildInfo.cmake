# Writes the source of src/cli/build_info.h, if its content changed: cmake -DSOURCE_DIR= -DTORCH= -DOUTPUT= -P.
find_program(GIT git)
set(commit unknown)
# A source archive may be below another project's repository.
if(GIT AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} describe --always --abbrev=10 --exclude=* --dirty=+
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status)
    set(commit unknown)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [=[
#include "cli/build_info.h"

namespace lockstep::cli {

const char kCommit[] = "@commit@";
const char kBuiltTorch[] = "@TORCH@";

}  // namespace lockstep::cli
]=])
