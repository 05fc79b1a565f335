// Stands in for gpma/device/intrinsics.cuh where kernels run on the emulated device: the same functions.
