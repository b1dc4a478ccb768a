//! What fields of events may say, where that is no number.

use super::record::Field;

/// A field's value, for who shows events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Name(&'static str),
}

/// Enums with their number on the wire, of the width given, and their name. A number that a reader does not know, as
/// that of a newer shim, is read as the `otherwise`.
macro_rules! named_values {
    ($($(#[$doc:meta])* $value:ident: $width:ty, otherwise $otherwise:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $number:literal $name:literal,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $value {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $value {
            pub const ALL: &[$value] = &[$($value::$variant),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $($value::$variant => $name,)*
                }
            }

            pub fn of_name(name: &str) -> Option<$value> {
                $value::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        impl Field for $value {
            const BYTES: usize = size_of::<$width>();

            #[inline]
            fn to_bits(self) -> u64 {
                self as u64
            }

            #[inline]
            fn from_bits(bits: u64) -> $value {
                match <$width>::from_bits(bits) {
                    $($number => $value::$variant,)*
                    _ => $value::$otherwise,
                }
            }

            fn value(self) -> Value {
                Value::Name(self.name())
            }
        }
    )*};
}

named_values! {
    /// Where a thread's clocks were read; always directly beside an event that bears the same time.
    ClockAt: u32, otherwise Other {
        Other = 0 "other",
        WaitEnter = 1 "wait_enter",
        WaitExit = 2 "wait_exit",
        BatchStart = 3 "batch_start",
        BatchReady = 4 "batch_ready",
        /// Beside a [`Step`](super::Step) of a loop without a loader.
        Step = 5 "step",
    }

    /// What ended a training step.
    StepSource: u32, otherwise Optimiser {
        /// The optimiser that leads: of several, the one that steps most often.
        Optimiser = 1 "optimiser",
        /// `stallscope.step()`.
        Script = 2 "script",
    }

    /// Whose call saved a checkpoint.
    Saver: u32, otherwise Other {
        TorchSave = 1 "torch.save",
        DcpSave = 2 "dcp.save",
        DcpAsyncSave = 3 "dcp.async_save",
        Safetensors = 4 "safetensors",
        Other = 5 "other",
        /// `stallscope.Checkpointer`.
        Stallscope = 6 "stallscope",
    }

    /// What a checkpoint's call did.
    Stage: u64, otherwise Persist {
        /// It copied the state.
        Snapshot = 0 "snapshot",
        /// It wrote the state, or waited until that was written.
        Persist = 1 "persist",
    }

    /// Which thread called for a checkpoint.
    Caller: u64, otherwise MainThread {
        MainThread = 0 "main_thread",
        Thread = 1 "thread",
        /// The main thread of a forked child.
        Forked = 2 "forked",
    }
}

/// Bits of the flags of a [`Wait`](super::Wait) and an [`IterStart`](super::IterStart).
pub mod wait_flags {
    /// Gradients were off at `next()`: evaluation.
    pub const NO_GRAD: u64 = 1;
    /// The first batch of its iterator.
    pub const FIRST: u64 = 2;
    /// The trainer made the batch itself (no workers).
    pub const IN_PROCESS: u64 = 4;
    /// A pin-memory thread stands between.
    pub const PINNED: u64 = 8;
    /// `next()` raised an error other than StopIteration.
    pub const FAILED: u64 = 16;

    /// Each with its name.
    pub const NAMES: [(u64, &str); 5] = [
        (NO_GRAD, "no_grad"),
        (FIRST, "first"),
        (IN_PROCESS, "in_process"),
        (PINNED, "pinned"),
        (FAILED, "failed"),
    ];
}
