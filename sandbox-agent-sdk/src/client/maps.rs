//! Hash maps whose order of iteration decides in which order tasks are woken.

/// A hash map.
#[cfg(not(feature = "fuzzing"))]
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V>;

/// A hash map whose order is the same in each run of a simulation.
#[cfg(feature = "fuzzing")]
pub(crate) type HashMap<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
