#pragma once

// ProcessGroupGloo.hpp includes this header of Gloo's but uses no name of it.
