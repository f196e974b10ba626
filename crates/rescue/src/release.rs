//! Releases a volume's records: durably marks them as void in the log.

use super::log::{POSSIBLY_STALE, STALE_REMEDY};
use super::source::Source;
use super::{SourceArguments, VolumeArguments};
use anyhow::anyhow;
use clap::Args;
use forebay_format::journal::Released;
use forebay_terminal::{print, print_json, with_remedy};
use forebay_types::Bytes;
use serde_json::json;

/// Arguments of `forebay rescue discard`.
#[derive(Args, Debug)]
pub struct DiscardArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    volume: VolumeArguments,

    /// Confirm: data of the volume that is not on its disk is lost for good
    #[arg(long)]
    yes: bool,
}

/// `forebay rescue discard`.
pub(super) fn discard(arguments: &DiscardArguments) -> anyhow::Result<()> {
    let SourceArguments { path, json: as_json, .. } = &arguments.source;
    let source = arguments.source.open(!arguments.yes)?;
    let volume = source.find(&arguments.volume)?;
    let held = source.held(volume.number);
    let (name, number, bytes) = (&volume.name, volume.number, Bytes(held.write_bytes));
    if !arguments.yes {
        let error =
            anyhow!("{path} holds {bytes} of volume '{name}' that may be missing from its disk");
        return Err(with_remedy(error, "repeat the command with --yes to give them up for good"));
    }
    if source.log.may_be_stale {
        let error = anyhow!("cannot discard from {path}: {POSSIBLY_STALE}");
        return Err(with_remedy(error, STALE_REMEDY));
    }
    source.log.check_release()?;
    release(&source, number, Released::Discarded)?;
    if *as_json {
        let report = json!({ "volume": name, "number": number, "discarded_bytes": bytes.0 });
        return print_json(&report);
    }
    print(&format!("volume '{name}': {bytes} discarded\n"))
}

/// Marks a volume's records as void for good, and removes its reliance on the log.
pub(super) fn release(source: &Source, number: u16, how: Released) -> anyhow::Result<()> {
    let volume = source.found().superblock.volume(number);
    let name = volume.expect("the volume is in this superblock").name.clone();
    source.log.release(number, how)?;
    source.remove_reliance(number, &name)
}
