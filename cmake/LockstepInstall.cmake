# cmake --install exports find_package(Lockstep): see tests/consumer.
