//! Says in a journal that a volume's records are void, durably.

use super::source::Source;
use super::{SourceArguments, VolumeArguments};
use crate::report::print;
use anyhow::{Context, bail};
use clap::Args;
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_format::journal::{Released, SUPERBLOCK_BYTES, Superblock};
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
    let state_dir = arguments.source.state_dir();
    let source = Source::open(path, !arguments.yes, state_dir.as_deref())?;
    let volume = source.find(&arguments.volume)?;
    let held = source.held(volume.number);
    let (name, number, bytes) = (&volume.name, volume.number, held.write_bytes);
    if !arguments.yes {
        bail!(
            "{path} holds {bytes} bytes of volume '{name}' that its disk may lack; to give them up \
             for good, say it again with --yes"
        );
    }
    release(&source, number, Released::Discarded)?;
    if *as_json {
        let said = json!({ "volume": name, "number": number, "discarded_bytes": bytes });
        return print(&format!("{said:#}\n"));
    }
    print(&format!("volume '{name}': {bytes} bytes are given up\n"))
}

/// Marks a volume's records as void. The superblock that says so is written in place of the older
/// of the two copies first, so that the newer one is there until this one is; then in place of the
/// other, as either may be lost later.
pub(super) fn release(source: &Source, number: u16, how: Released) -> anyhow::Result<()> {
    let mut superblock = source.found.superblock.clone();
    let volume = superblock.volumes.iter_mut().find(|volume| volume.number == number);
    volume.expect("it was found in this superblock").guard.released = how;
    for _ in 0..2 {
        superblock.sequence += 1;
        write(source, &superblock)?;
    }
    Ok(())
}

fn write(source: &Source, superblock: &Superblock) -> anyhow::Result<()> {
    let device = Blocking::new(&*source.backend);
    let position = superblock.position();
    let failed = || format!("{}: the volume's records can't be marked as done", source.name());
    let bytes = AlignedBuffer::from(&superblock.encode()[..]);
    device.write(position, &bytes, true).with_context(failed)?;
    device.flush().with_context(failed)?;
    let mut back = AlignedBuffer::new(SUPERBLOCK_BYTES);
    device.read(position, &mut back).with_context(failed)?;
    if Superblock::decode(&back).as_ref() != Ok(superblock) {
        bail!("{}: what was written reads differently; the device can't be trusted", source.name());
    }
    Ok(())
}
