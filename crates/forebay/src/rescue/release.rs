//! Says in a log that a volume's records are void, durably.

use super::source::Source;
use super::{SourceArguments, VolumeArguments};
use crate::report::print;
use anyhow::{bail, ensure};
use clap::Args;
use forebay_format::journal::Released;
use serde_json::json;

/// Arguments of `forebay rescue discard`.
#[derive(Args, Debug)]
pub(crate) struct DiscardArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    volume: VolumeArguments,

    /// Really: what is held of the volume and not on its disk is lost for good
    #[arg(long)]
    yes: bool,
}

/// `forebay rescue discard`.
pub(super) fn discard(arguments: &DiscardArguments) -> anyhow::Result<()> {
    let SourceArguments { path, json: as_json, .. } = &arguments.source;
    let source = arguments.source.open(!arguments.yes)?;
    let volume = source.find(&arguments.volume)?;
    let held = source.held(volume.number);
    let (name, number, bytes) = (&volume.name, volume.number, held.write_bytes);
    if !arguments.yes {
        bail!(
            "{path} holds {bytes} bytes of volume '{name}' that its disk may lack; to give them up \
             for good, say it again with --yes"
        );
    }
    ensure!(
        !source.log.may_be_stale,
        "{path} is one of the two devices of its journal, and nothing says that the other one is \
         not newer; name that with --mirror, or the daemon's state directory with --state"
    );
    source.log.check_release()?;
    release(&source, number, Released::Discarded)?;
    if *as_json {
        let said = json!({ "volume": name, "number": number, "discarded_bytes": bytes });
        return print(&format!("{said:#}\n"));
    }
    print(&format!("volume '{name}': {bytes} bytes are given up\n"))
}

/// Marks a volume's records as void, for good.
pub(super) fn release(source: &Source, number: u16, how: Released) -> anyhow::Result<()> {
    let volume = source.found().superblock.volume(number);
    let name = volume.expect("it was found in this superblock").name.clone();
    source.log.release(number, how)?;
    source.forget(number, &name)
}
