//! The end of the server before the machine goes down, if a disk prevents an orderly stop: a
//! machine that waited for a dead disk would have to be reset.

use super::Daemon;
use crate::serve::shutdown;
use forebay_types::Size;

/// Ends the server if the machine is shutting down. Returns whether it has.
pub(in crate::serve) fn leave_if_machine_stops(daemon: &Daemon) -> bool {
    if !shutdown::is_machine_stopping() {
        return false;
    }
    let claim = daemon.claims.everything_after_another();
    tracing::error!("the machine is shutting down, stopping without the data that disks refuse");
    let left = match forebay_runtime::leave(&daemon.runtime) {
        Ok(left) => left,
        Err(error) => {
            tracing::error!(%error, "cannot stop");
            return false;
        }
    };
    claim.keep();
    for left in left {
        let (volume, bytes) = (left.volume, Size(left.bytes));
        match left.kept_by {
            Some(keeper) => tracing::error!(volume, %bytes, kept_by = keeper, "dirty data is kept"),
            None => tracing::error!(volume, %bytes, "dirty data is lost"),
        }
    }
    daemon.statistics.save();
    true
}
