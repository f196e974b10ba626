//! Layers that stack on any backend: faults, delays, limits, a trace. Each affects some of the I/O,
//! and passes on the rest unchanged.
//!
//! They ship with the program, so that an administrator can try the effect of a slow or failing
//! disk on a volume. [`Gate`] is for tests only.
//!
//! A layer hides the open file of the backend below ([`Backend::native_file`]), so that every I/O
//! passes through it.

mod blocks;
mod delay;
mod errors;
mod gate;
mod kinds;
mod owned;
mod rate;
mod trace;
mod volatile;

#[cfg(test)]
mod tests;

pub use blocks::{Blocks, BlocksError};
pub use delay::{Delay, DelayTime, Delays};
pub use errors::{ErrorLayer, ErrorRule};
pub use gate::{Gate, HeldIo};
pub use kinds::Kinds;
pub use owned::{Owned, OwnedError};
pub use rate::{Rate, RateLimits};
pub use trace::{TraceFileError, TraceLayer};
pub use volatile::{Volatile, VolatileError, Volatility};

use crate::{Backend, Description, OpenError, OpenOptions};
use std::sync::Arc;

/// The names of the layers.
pub(crate) const NAMES: [&str; 7] =
    ["blocks", "delay", "error", "owned", "rate", "trace", "volatile"];

/// Puts the layer `name` with the options `text` on `inner`. Without I/O
/// by clients, for a trial or a look, no trace and no tenure is begun.
pub(crate) fn open(
    name: &str,
    text: &str,
    inner: Arc<dyn Backend>,
    options: &OpenOptions,
) -> Result<Arc<dyn Backend>, OpenError> {
    let is_unused = options.is_trial || options.observes;
    let named = format!("{name}({text}):{}", inner.description().name);
    Ok(match name {
        "blocks" => {
            let mut layer = Blocks::new(inner, blocks::parse(text)?)?;
            layer.description.name = named;
            Arc::new(layer)
        }
        "delay" => {
            let mut layer = Delay::new(inner, Delays::parse(text)?);
            layer.description.name = named;
            Arc::new(layer)
        }
        "error" => {
            let mut layer = ErrorLayer::new(inner, ErrorRule::parse(text)?);
            layer.description.name = named;
            Arc::new(layer)
        }
        "owned" if is_unused => owned::parse(text).map(|_| inner)?,
        "owned" => {
            let mut layer = Owned::open(inner, text)?;
            layer.description.name = named;
            Arc::new(layer)
        }
        "rate" => {
            let mut layer = Rate::new(inner, RateLimits::parse(text)?);
            layer.description.name = named;
            Arc::new(layer)
        }
        "volatile" => {
            let mut layer = Volatile::new(inner, Volatility::parse(text)?)?;
            layer.description.name = named;
            Arc::new(layer)
        }
        _ if is_unused => TraceLayer::options(text).map(|_| inner)?,
        _ => {
            let mut layer = TraceLayer::parse(inner, text)?;
            layer.description.name = named;
            Arc::new(layer)
        }
    })
}

/// The description of the backend below, with the layer in its name.
fn describe(layer: &str, inner: &dyn Backend) -> Description {
    let mut description = inner.description().clone();
    description.name = format!("{layer}:{}", description.name);
    description
}
