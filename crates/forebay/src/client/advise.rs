//! `forebay advise`: the crate of that name, with this program's signals and control socket.

use super::connect;
use crate::arguments::StateArguments;
use crate::report::warn;
use crate::signals::Signals;
use anyhow::Context;
use forebay_advise::{AdviseArguments, Host, advise_devices, advise_volumes};
use std::time::Duration;

/// `forebay advise`.
pub(crate) fn advise(arguments: &AdviseArguments, state: &StateArguments) -> anyhow::Result<()> {
    if !arguments.has_devices() {
        return advise_volumes(arguments, || {
            let client = connect(state)?;
            Ok((client.status()?, client.statistics()?))
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot create an event loop")?;
    let mut signals =
        runtime.block_on(async { Signals::listen().context("cannot handle signals") })?;
    let pause = &mut |time: Duration| {
        runtime.block_on(async { tokio::time::timeout(time, signals.next()).await.is_ok() })
    };
    advise_devices(arguments, Host { warn, pause })
}
