# Finds Chart.js, which every report contains: from Debian's package libjs-chart.js, or the file that
# LOCKSTEP_CHART_JS names (chart.min.js or chart.umd.js of version 3 or 4). It is compiled into the library, so
# the installed package does not need the file.
find_file(LOCKSTEP_CHART_JS NAMES chart.min.js chart.umd.js Chart.min.js
  HINTS ENV LOCKSTEP_CHART_JS_DIR
  PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist
        /usr/local/share/javascript/chart.js
  NO_DEFAULT_PATH
  DOC "Chart.js as one file")
if(NOT LOCKSTEP_CHART_JS)
  message(FATAL_ERROR "Chart.js was not found: install Debian's package libjs-chart.js, "
    "or set LOCKSTEP_CHART_JS to its chart.min.js")
endif()
mark_as_advanced(LOCKSTEP_CHART_JS)
