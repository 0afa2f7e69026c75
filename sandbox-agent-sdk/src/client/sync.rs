//! The lock of the hub and of its queues.
//!
//! Unit tests can put it under the random schedules of `shuttle`, see `explore`.

pub(crate) use std::sync::PoisonError;
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use scheduled::{Mutex, MutexGuard, explore};

#[cfg(test)]
mod scheduled {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError};

    thread_local! {
        /// Whether this thread runs an exploration. All tasks of one run on the same thread.
        static EXPLORES: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a test under this many random schedules, which may switch tasks at every lock.
    pub(crate) fn explore(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
        EXPLORES.set(true);
        shuttle::check_random(test, schedules);
        EXPLORES.set(false);
    }

    /// The lock of the standard library, or that of `shuttle` if it is created in an exploration.
    #[derive(Debug)]
    pub(crate) enum Mutex<T> {
        Plain(std::sync::Mutex<T>),
        Explored(shuttle::sync::Mutex<T>),
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            match EXPLORES.get() {
                false => Self::Plain(std::sync::Mutex::new(value)),
                true => Self::Explored(shuttle::sync::Mutex::new(value)),
            }
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            Ok(match self {
                Self::Plain(lock) => MutexGuard::Plain(lock.lock().unwrap_or_else(PoisonError::into_inner)),
                Self::Explored(lock) => {
                    MutexGuard::Explored(lock.lock().unwrap_or_else(PoisonError::into_inner))
                }
            })
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    #[derive(Debug)]
    pub(crate) enum MutexGuard<'a, T> {
        Plain(std::sync::MutexGuard<'a, T>),
        Explored(shuttle::sync::MutexGuard<'a, T>),
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            match self {
                Self::Plain(guard) => guard,
                Self::Explored(guard) => guard,
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match self {
                Self::Plain(guard) => guard,
                Self::Explored(guard) => guard,
            }
        }
    }
}
