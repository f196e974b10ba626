//! `forebay rescue apply`: writes a volume's data from a journal or vault to a disk.
//!
//! The order is: check everything, write each extent, flush the disk, read back and compare each
//! extent, and only then mark the volume's records as applied. Until that mark is durable, running
//! the command again repeats all steps with the same result.

use super::access::{self, PIECE_BYTES};
use super::log::{POSSIBLY_STALE, STALE_REMEDY};
use super::source::{HeldVolume, Payloads, Source, open_existing, with_owners};
use super::{SourceArguments, VolumeArguments, release};
use anyhow::{Context, anyhow};
use clap::Args;
use forebay_backend::{Backend, Blocking, OpenOptions};
use forebay_format::journal::{Released, VolumeEntry};
use forebay_journal::identity::{DiskIdentity, Evidence};
use forebay_journal::{self, Extent};
use forebay_state::identity;
use forebay_terminal::{print, print_json, with_remedy};
use forebay_types::{ByteRange, Bytes, Remedy, SECTOR_BYTES};
use serde_json::json;

/// Arguments of `forebay rescue apply`.
#[derive(Args, Debug)]
pub struct ApplyArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    volume: VolumeArguments,

    /// The disk to write to: a backing as in forebay serve
    #[arg(long, value_name = "BACKING")]
    to: String,

    /// Check and report everything, but write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    overrides: ApplyOverrides,
}

/// Safety checks that the operator overrides.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct ApplyOverrides {
    /// Write even to a disk of another size or content, or from a journal that was given up
    #[arg(long)]
    pub(super) force: bool,

    /// Write even if part of the data in the journal can no longer be read
    #[arg(long)]
    pub(super) accept_loss: bool,

    /// Write even if no state directory records that the volume relies on it; newer data of the
    /// disk, if there is any, is then overwritten
    #[arg(long)]
    pub(super) accept_older: bool,
}

/// The outcome of an apply, or of a dry run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) written_bytes: u64,
    pub(super) erased_bytes: u64,
    pub(super) lost_bytes: u64,
    pub(super) evidence: Evidence,
}

/// `forebay rescue apply`.
pub(super) fn run(arguments: &ApplyArguments) -> anyhow::Result<()> {
    let ApplyArguments { source: which, volume, to, dry_run, overrides } = arguments;
    let source = which.open(*dry_run)?;
    let volume = source.find(volume)?;
    let options = OpenOptions { read_only: *dry_run, ..OpenOptions::default() };
    let disk = open_existing(to, &options)?;
    let applied = if *dry_run {
        check(&source, volume, &*disk, *overrides)?.1
    } else {
        apply(&source, volume, &*disk, *overrides)?
    };
    let Applied { written_bytes, erased_bytes, lost_bytes, evidence } = &applied;
    if which.json {
        let report = json!({
            "volume": volume.name,
            "number": volume.number,
            "to": to,
            "dry_run": dry_run,
            "written_bytes": written_bytes,
            "erased_bytes": erased_bytes,
            "lost_bytes": lost_bytes,
            "samples_compared": evidence.compared,
            "samples_differing": evidence.differing,
        });
        return print_json(&report);
    }
    let outcome = if *dry_run { "would be written" } else { "written and verified" };
    let lost = match lost_bytes {
        0 => String::new(),
        lost => format!(", {} lost", Bytes(*lost)),
    };
    print(&format!(
        "volume '{}' to {to} ({evidence}): {} {outcome}, including {} erased{lost}\n",
        volume.name,
        Bytes(*written_bytes),
        Bytes(*erased_bytes)
    ))
}

/// Writes, verifies and releases a volume's data.
pub(super) fn apply(
    source: &Source,
    volume: &VolumeEntry,
    disk: &dyn Backend,
    overrides: ApplyOverrides,
) -> anyhow::Result<Applied> {
    let (held, applied) = check(source, volume, disk, overrides)?;
    let to = &disk.description().name;
    let failed = || format!("cannot write the data in {} to {to}", source.name());
    let mut payloads = Payloads::new(source);
    for extent in held.extents.iter().filter(|extent| must_write(source, extent, disk)) {
        match payloads.read(extent)? {
            Some(bytes) => access::write(disk, extent.range.offset, bytes),
            None => zero(disk, extent.range),
        }
        .with_context(failed)?;
    }
    Blocking::new(disk).flush().with_context(failed)?;
    for extent in held.extents.iter().filter(|extent| must_write(source, extent, disk)) {
        compare(extent, payloads.read(extent)?, disk)?;
    }
    release::release(source, volume.number, Released::Applied)?;
    Ok(applied)
}

/// Returns true if an extent is to be written. Lost extents, discards and extents beyond the end
/// of the disk are not.
fn must_write(source: &Source, extent: &Extent, disk: &dyn Backend) -> bool {
    !source.is_lost(extent)
        && extent.source != forebay_journal::Source::Discard
        && extent.range.fits(disk.description().size_bytes())
}

/// Refuses to write if the source, the volume or the disk fails a check that is not overridden.
pub(super) fn check(
    source: &Source,
    volume: &VolumeEntry,
    disk: &dyn Backend,
    overrides: ApplyOverrides,
) -> anyhow::Result<(HeldVolume, Applied)> {
    let (name, here, to) = (&volume.name, source.name(), &disk.description().name);
    let is_forced = overrides.force;
    if let (Some(mark), true, false) = (&source.mark, source.is_given_up(name), is_forced) {
        let error = anyhow!(
            "{here} was given up ({}) and its volumes continued without it: its data of volume \
             '{name}' is older than the disk",
            mark.reason
        );
        return Err(with_remedy(error, "use --force to write it anyway"));
    }
    if let (Some(newer), false) = (source.newer(name), is_forced) {
        let error = anyhow!("{newer} may hold newer data of volume '{name}' than {here}");
        let remedy = Remedy::from(format!("apply the data of {newer}"));
        return Err(with_remedy(error, remedy.or("use --force if that is lost")));
    }
    let held = source.held(volume.number);
    let named = identity(name, to);
    let evidence = forebay_runtime::examine_disk(source.found(), volume, disk, named);
    let evidence = with_owners(source, name, disk, evidence)?;
    let identity = evidence.identity();
    if matches!(identity, DiskIdentity::Changed | DiskIdentity::Unknown) && !is_forced {
        let error = anyhow!(
            "cannot confirm that {to} is the disk of volume '{name}', unchanged since its last use \
             ({evidence})"
        );
        return Err(with_remedy(error, "use --force if it is the right disk"));
    }
    let size_bytes = disk.description().size_bytes();
    let beyond_end = held.extents.iter().filter(|extent| !extent.range.fits(size_bytes));
    let beyond_end_bytes: u64 = beyond_end.map(|extent| extent.range.len).sum();
    let lost_bytes = held.lost_bytes + beyond_end_bytes;
    let is_incomplete = lost_bytes > 0 || source.lacks_records();
    let is_incomplete = is_incomplete || source.is_unfinished() || source.log.may_be_stale;
    if is_incomplete && !overrides.accept_loss {
        let lacks_data = held.lost_bytes > 0 || source.lacks_records();
        let cause = match source.found().damage.first() {
            Some(damage) if lacks_data => damage.to_string(),
            _ if source.is_unfinished() => "the dump is incomplete".to_owned(),
            _ if source.log.may_be_stale => POSSIBLY_STALE.to_owned(),
            _ => format!("{} lie beyond the end of {to}", Bytes(beyond_end_bytes)),
        };
        let error = anyhow!(
            "part of the data that {here} held of volume '{name}' cannot be written: {cause}"
        );
        let accept = "use --accept-loss to write the rest";
        let remedy = match source.log.may_be_stale {
            true => Remedy::from(STALE_REMEDY).or(accept),
            false => accept.into(),
        };
        return Err(with_remedy(error, remedy));
    }
    check_reliance(source, name, &held, overrides)?;
    source.log.check_release()?;
    let written = held.extents.iter().filter(|extent| must_write(source, extent, disk));
    let (mut written_bytes, mut erased_bytes) = (0, 0);
    for extent in written {
        written_bytes += extent.range.len;
        if !matches!(extent.source, forebay_journal::Source::Write { .. }) {
            erased_bytes += extent.range.len;
        }
    }
    let applied = Applied { written_bytes, erased_bytes, lost_bytes, evidence };
    Ok((held, applied))
}

/// Refuses data that may be older than the disk. Only the state directory records that a journal
/// has failed, or that a volume was served without its vault.
fn check_reliance(
    source: &Source,
    volume: &str,
    held: &HeldVolume,
    overrides: ApplyOverrides,
) -> anyhow::Result<()> {
    let is_exempt = held.records == 0 || source.is_given_up(volume) || overrides.accept_older;
    if is_exempt || source.is_relied_on(volume)? {
        return Ok(());
    }
    let here = source.name();
    let error = anyhow!(
        "no state directory records that volume '{volume}' relies on {here}: the disk may have \
         newer data, if {here} failed or the volume was served without it"
    );
    let remedy = Remedy::from("name the daemon's state directory with --state");
    Err(with_remedy(error, remedy.or("use --accept-older to overwrite newer data")))
}

/// Splits a range into pieces of at most [`PIECE_BYTES`].
fn pieces(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    (0..range.len)
        .step_by(PIECE_BYTES as usize)
        .map(move |from| ByteRange::new(range.offset + from, PIECE_BYTES.min(range.len - from)))
}

fn zero(disk: &dyn Backend, range: ByteRange) -> forebay_types::IoResult {
    let alignment = u64::from(disk.description().alignment_bytes).max(SECTOR_BYTES);
    let device = Blocking::new(disk);
    pieces(range).try_for_each(|piece| {
        let is_aligned = [piece.offset, piece.len].iter().all(|n| n.is_multiple_of(alignment));
        if is_aligned {
            device.zero(piece.offset, piece.len, false)
        } else {
            access::write(disk, piece.offset, &vec![0; piece.len as usize])
        }
    })
}

/// Reads an extent back and compares it with what was written.
fn compare(extent: &Extent, content: Option<&[u8]>, disk: &dyn Backend) -> anyhow::Result<()> {
    let to = &disk.description().name;
    for piece in pieces(extent.range) {
        let back = access::read(disk, piece.offset, piece.len)
            .with_context(|| format!("cannot read back {to} at byte {}", piece.offset))?;
        let at = (piece.offset - extent.range.offset) as usize;
        let is_same = match content {
            Some(content) => back == content[at..at + back.len()],
            None => back.iter().all(|&byte| byte == 0),
        };
        if !is_same {
            let error = anyhow!(
                "{to} does not return the data just written at byte {}; the source is unchanged, \
                 so no data is lost",
                piece.offset
            );
            return Err(with_remedy(error, "write to another disk"));
        }
    }
    Ok(())
}
