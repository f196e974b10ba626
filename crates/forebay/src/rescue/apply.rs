//! Brings what a journal or a vault holds of a volume to a disk.
//!
//! In this order: everything is checked before anything is written; each extent is written; the
//! disk's cache is emptied; each extent is read back and compared; only then the volume's records
//! are marked as done. Until that mark is durable the same command does all of it again, with the
//! same result.

use super::access::{self, PIECE_BYTES};
use super::source::{Held, Payloads, Source};
use super::{SourceArguments, VolumeArguments, release};
use crate::report::print;
use anyhow::{Context, bail};
use clap::Args;
use forebay_backend::{Backend, Blocking, OpenOptions};
use forebay_format::journal::{Released, VolumeEntry};
use forebay_journal::identity::{DiskIdentity, Evidence};
use forebay_journal::{self, Extent};
use forebay_types::{ByteRange, SECTOR_BYTES};
use serde_json::json;

/// Arguments of `forebay rescue apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    volume: VolumeArguments,

    /// The disk: a backing as in forebay serve
    #[arg(long, value_name = "BACKING")]
    to: String,

    /// Check and say everything, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    words: Words,
}

/// What the operator takes upon himself.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// Also to a disk of another size or content, or from a journal that was given up
    #[arg(long)]
    pub(super) force: bool,

    /// Also where something that the journal held can't be read any more
    #[arg(long)]
    pub(super) accept_loss: bool,
}

/// What was done, or would be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) written_bytes: u64,
    pub(super) erased_bytes: u64,
    pub(super) lost_bytes: u64,
    pub(super) evidence: Evidence,
}

/// `forebay rescue apply`.
pub(super) fn run(arguments: &ApplyArguments) -> anyhow::Result<()> {
    let ApplyArguments { source: which, volume, to, dry_run, words } = arguments;
    let source = which.open(*dry_run)?;
    let volume = source.find(volume)?;
    let options = OpenOptions { read_only: *dry_run, ..OpenOptions::default() };
    let disk = forebay_backend::open(to, &options)?;
    let applied = if *dry_run {
        check(&source, volume, &*disk, *words)?.1
    } else {
        apply(&source, volume, &*disk, *words)?
    };
    let Applied { written_bytes, erased_bytes, lost_bytes, evidence } = &applied;
    if which.json {
        let said = json!({
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
        return print(&format!("{said:#}\n"));
    }
    let outcome = if *dry_run { "would be written" } else { "are written and compared" };
    let lost = match lost_bytes {
        0 => String::new(),
        _ => format!(", {lost_bytes} bytes are lost"),
    };
    print(&format!(
        "volume '{}' to {to} ({}): {written_bytes} bytes {outcome}, {erased_bytes} bytes of them \
         erased{lost}\n",
        volume.name, evidence
    ))
}

/// Does it, whole.
pub(super) fn apply(
    source: &Source,
    volume: &VolumeEntry,
    disk: &dyn Backend,
    words: Words,
) -> anyhow::Result<Applied> {
    let (held, applied) = check(source, volume, disk, words)?;
    let to = &disk.description().name;
    let failed = || format!("{to} does not take what {} holds", source.name());
    let mut payloads = Payloads::new(source);
    for extent in held.extents.iter().filter(|extent| counts(source, extent, disk)) {
        match payloads.read(extent)? {
            Some(bytes) => access::write(disk, extent.range.offset, bytes),
            None => zero(disk, extent.range),
        }
        .with_context(failed)?;
    }
    Blocking::new(disk).flush().with_context(failed)?;
    for extent in held.extents.iter().filter(|extent| counts(source, extent, disk)) {
        compare(extent, payloads.read(extent)?, disk)?;
    }
    release::release(source, volume.number, Released::Applied)?;
    Ok(applied)
}

/// Whether an extent is written: what is lost is not, and not what lies behind the end. What was
/// discarded is of no interest.
fn counts(source: &Source, extent: &Extent, disk: &dyn Backend) -> bool {
    !source.is_lost(extent)
        && extent.source != forebay_journal::Source::Discard
        && extent.range.fits(disk.description().size_bytes)
}

/// Refuses what must not be, and says what there is to do.
pub(super) fn check(
    source: &Source,
    volume: &VolumeEntry,
    disk: &dyn Backend,
    words: Words,
) -> anyhow::Result<(Held, Applied)> {
    let (name, here, to) = (&volume.name, source.name(), &disk.description().name);
    if let (Some(mark), true, false) = (&source.mark, source.is_given_up(name), words.force) {
        bail!(
            "{here} was given up ({}), and its volumes went on without it: what it holds of \
             '{name}' is older than the disk. To write it all the same, say --force",
            mark.reason
        );
    }
    if let (Some(newer), false) = (source.newer(name), words.force) {
        bail!(
            "the newest of volume '{name}' may be in {newer}: what {here} holds of it is \
             older; apply that one, or, if it is lost, say --force"
        );
    }
    let held = source.held(volume.number);
    let named = crate::serve::identity(name, to);
    let evidence = forebay_runtime::examine_disk(source.found(), volume, disk, named);
    let identity = evidence.identity();
    if matches!(identity, DiskIdentity::Changed | DiskIdentity::Unknown) && !words.force {
        bail!(
            "{to} is not known to be the disk of volume '{name}' as it was left ({}); if it is the \
             one to write to, say --force",
            evidence
        );
    }
    let size_bytes = disk.description().size_bytes;
    let behind = held.extents.iter().filter(|extent| !extent.range.fits(size_bytes));
    let behind_bytes: u64 = behind.map(|extent| extent.range.len).sum();
    let lost_bytes = held.lost_bytes + behind_bytes;
    let is_short = lost_bytes > 0 || source.lacks_records();
    let is_short = is_short || source.is_unfinished() || source.log.may_be_stale;
    if is_short && !words.accept_loss {
        let what = match source.found().damage.first() {
            Some(damage) => damage.to_string(),
            None if source.is_unfinished() => "the dump was not finished".to_owned(),
            None if source.log.may_be_stale => {
                "it is one of the two devices of its journal, and nothing says that the other one \
                 is not newer: name that with --mirror, or the daemon's state directory with \
                 --state"
                    .to_owned()
            }
            None => format!("{behind_bytes} bytes lie behind the end of {to}"),
        };
        bail!(
            "not all that {here} held of volume '{name}' can be written: {what}; to write what is \
             left, say --accept-loss"
        );
    }
    source.log.check_release()?;
    let written = held.extents.iter().filter(|extent| counts(source, extent, disk));
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

/// The pieces of a range that are handled one by one.
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

/// Reads an extent back.
fn compare(extent: &Extent, content: Option<&[u8]>, disk: &dyn Backend) -> anyhow::Result<()> {
    let to = &disk.description().name;
    for piece in pieces(extent.range) {
        let back = access::read(disk, piece.offset, piece.len)
            .with_context(|| format!("{to} can't be read back at byte {}", piece.offset))?;
        let at = (piece.offset - extent.range.offset) as usize;
        let is_same = match content {
            Some(content) => back == content[at..at + back.len()],
            None => back.iter().all(|&byte| byte == 0),
        };
        if !is_same {
            bail!(
                "{to} reads differently from what was written at byte {}; nothing is marked as \
                 done, so nothing is lost: write to another disk",
                piece.offset
            );
        }
    }
    Ok(())
}
