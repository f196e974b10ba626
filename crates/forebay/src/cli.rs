//! The command line: every command with its help.

use crate::arguments::{
    ClientsArguments, ForceArguments, PinArguments, ServeArguments, ShowArguments, StateArguments,
    StatusArguments, TopArguments, TraceArguments, UnpinArguments, VolumeCommand, last_requests,
    server_settings_help,
};
use crate::client::analyze::AnalyzeCommand;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use forebay_advise::AdviseArguments;
use forebay_attach::{AttachArguments, DetachArguments};
use forebay_rescue::RescueCommand;
use std::path::PathBuf;

/// A block cache between clients and disks.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "To begin: forebay serve /path/to/disk, then forebay status."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve volumes to clients until stopped
    Serve(ServeArguments),
    /// Show whether a running forebay works, what is wrong, and what it saves
    #[command(long_about = "Show whether a running forebay works, what is wrong, and what it \
        saves.\nWithout NAME: the state, errors and warnings with what to do, the requests served \
        from memory, the I/Os and bytes that the disks were spared, latencies, and a line for each \
        volume. HIT % counts reads found in memory and writes acknowledged from memory; the \
        latency HIT is theirs, and MISS that of the others, both as means. Counters begin with \
        the server, or when the volume was added; with --watch they are those of the last \
        interval. Everything fits in 80 columns: long names are cut in the middle.")]
    Status(StatusArguments),
    /// Monitor a running forebay in the terminal
    #[command(
        long_about = "Monitor a running forebay in the terminal.\nRequests per second and hit \
        % as charts, latencies of hits, of misses and of the disks, memory, dirty data and power, \
        and the volumes as a list that can be sorted. Enter shows one volume in depth, ? the keys, \
        and q ends it. A terminal of less than 80 columns and 24 rows shows a part. \
        It sends the server one request per interval."
    )]
    Top(TopArguments),
    /// Show the statistics of the volumes of a running forebay
    Stats {
        /// The volume to show in detail [default: all, in short]
        name: Option<String>,
        #[command(flatten)]
        show: ShowArguments,
    },
    /// Measure the benefit of a running forebay, against requests served as if there were no cache
    #[command(subcommand)]
    Analyze(AnalyzeCommand),
    /// Recommend which block devices or volumes to cache, in which mode, and estimate the benefit
    #[command(
        long_about = "Recommend which block devices or volumes to cache, in which mode, and \
        estimate the benefit.\nWithout DEVICE, the volumes of a running forebay are judged by \
        their statistics of the last day and their miss-ratio curves: which gain, which would gain \
        by another mode or more memory, and which gain nothing and can be taken out.\nBlock \
        devices are observed while in normal use: the kernel's counters before and after, and, for \
        root, the places that are read and written. Nothing is read from the devices or written to \
        them. The reads that a cache of each size would have served are found by a replay through \
        the server's own eviction policy. If interrupted, it reports on the time observed so far."
    )]
    Advise {
        #[command(flatten)]
        arguments: AdviseArguments,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Show the last slow requests of clients, and what each waited for
    #[command(long_about = "Show the last slow requests of clients, and what each waited for.\nA \
        request is slow from the latency on that the setting slow of its volume says. The last 64 \
        of each volume are kept. The log has the slowest of them.")]
    Slow {
        /// Only those of this volume
        name: Option<String>,
        /// How many at most, counted from the newest
        #[arg(
            short = 'n', long, value_name = "N", default_value = "20",
            value_parser = last_requests
        )]
        last: usize,
        #[command(flatten)]
        show: ShowArguments,
    },
    /// List the connected clients of a running forebay, or disconnect one
    #[command(long_about = "List the connected clients of a running forebay, or disconnect \
        one.\nEach connection has a line, the longest connected first: its volume, the requests \
        in flight, the bytes that it has read and written, whether it is encrypted, and what it \
        is: the process and user of a client of a Unix socket, with its /dev/nbdN and where that \
        is mounted, or the address of another one. Without a volume, it is still in its \
        handshake. A client that is disconnected may connect again at once.")]
    Clients(ClientsArguments),
    /// Record the requests of clients as a block trace, for forebay-lab replay
    #[command(long_about = "Record the requests of clients as a block trace, for forebay-lab \
        replay.\nThe file has a line for each read and write of the volumes, in the order of \
        arrival: the time in microseconds since the first, the volume by its number in the command \
        from 0, R or W, offset and length in bytes, the time until the answer in microseconds, and \
        how it was served: pool, or the reason as in forebay stats. Clients do not wait for it: \
        requests that come too fast are left out and counted. It ends after --time, at --max-size, \
        or with Ctrl-C, and keeps what it has.")]
    Trace(TraceArguments),
    /// List, add, change and remove volumes of a running forebay
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Keep ranges of a volume, or files on it, in memory
    #[command(long_about = "Keep ranges of a volume, or files on it, in memory.\n\
        Data that is not in memory yet is read in the background, and stays there, whatever else \
        is read. All volumes together can pin half of the memory for data. Ranges that are \
        pinned already stay pinned. Pins last until the volume is removed or the server ends; a \
        setting of the volume, as in pin=0+1GiB, pins at each start.\n\
        A file is pinned where it is now, on this machine, on a file system that is directly on \
        the volume's device or on a partition of it. With --follow, the pins move and grow with \
        the file until this command ends.")]
    Pin(PinArguments),
    /// Unpin ranges of a volume, or files on it
    Unpin(UnpinArguments),
    /// Save a volume in memory to its image
    #[command(long_about = "Save a volume in memory to its image.\n\
        The image is the content of the volume when the save begins; clients are served meanwhile. \
        The former image stays until the new one is complete and stable. It is for volumes with \
        the backing memory:SIZE?save=PATH. They are also saved when they are removed and when the \
        server stops, and with every=TIME after PATH, as in save=PATH&every=5m, at intervals.")]
    Save {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Change settings of a running forebay
    Set {
        /// The settings
        #[arg(
            value_name = "KEY=VALUE",
            required = true,
            long_help = server_settings_help()
        )]
        settings: Vec<String>,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Rehearse a power failure on a running forebay
    #[command(long_about = "Rehearse a power failure on a running forebay.\n\
        The dirty data of volumes under a UPS is written to the vault, synced, read back and \
        compared, and the disks are flushed, while clients are served. If nothing is dirty, that \
        is done with as much test data as may be dirty. The vault is empty afterwards. The report \
        is kept in the state directory, under drills. The exit code is 1 if \
        the battery would not have lasted until all data was saved.")]
    Drill(ShowArguments),
    /// Write all dirty data to the disks and stop a running forebay
    Stop {
        #[command(flatten)]
        force: ForceArguments,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Apply the changes of the configuration file to a running forebay
    #[command(long_about = "Apply the changes of the configuration file to a running forebay, as \
        SIGHUP does.\nVolumes that the file no longer has are removed, after their data was \
        written to their disks. Refused if these are more than half of the volumes, and for a \
        volume that has clients, unless --remove confirms it. The exit code is 1 if a change \
        failed; the others are applied.")]
    Reload {
        /// Remove volumes even if they are more than half of all, or have clients
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Replace a running forebay with the program now at its path, which adopts the pool
    #[command(long_about = "Replace a running forebay with the program now at its path, which \
        adopts the pool.\nNo data is written to the disks first: dirty data stays in memory, which \
        a keeper holds. Connections without TLS continue. The new program checks the \
        configuration first; if it refuses it, nothing changes. If it exits before it serves, the \
        old program is started again, and the exit code is 1.")]
    Upgrade(StateArguments),
    /// Serve a volume that another host has, and shut that host out
    #[command(long_about = "Serve a volume that another host has, and shut that host out.\nThe \
        volume has standby=yes or nofail=yes in the configuration of both hosts, and this one \
        does not serve it: it is on standby, or the other host has the disk's reservation, or the \
        lock of the image. That ends: from then on the disk, and the devices of the journal, \
        refuse whatever the former host writes, also after hours of sleep. Data that a journal on \
        a shared device holds is served at once. Does nothing if the volume is served here.\n\
        With --hold, a program that runs a command on one host at a time, as `etcdctl lock` does, \
        decides where the volume is served. On SIGTERM or SIGINT, the command ends as `forebay \
        standby` does; if the volume is not served here any more, with an error.")]
    Takeover {
        /// The volume's name
        name: String,
        /// Keep running while the volume is served here, and end its service on SIGTERM or SIGINT
        #[arg(long)]
        hold: bool,
        #[command(flatten)]
        state: StateArguments,
    },
    /// End the service of a volume, so that another host can take it over
    #[command(long_about = "End the service of a volume, so that another host can take it over.\n\
        Its clients are disconnected, its dirty data is written to its disk, and it stays in the \
        status as on standby until `forebay takeover` serves it here again. Does nothing if it is \
        on standby already.")]
    Standby {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Make a volume of a running forebay a block device of this machine
    #[command(long_about = "Make a volume of a running forebay a block device of this machine.\n\
        The device is /dev/forebay/VOLUME. It outlives the server: while none serves it, after a \
        crash, a stop or an upgrade, its requests wait, and none fails. A process in the \
        background gives it to the next server. It needs root, and a driver of the kernel: ublk \
        (Linux 6.5 or later), or the NBD client (Linux 5.14 or later), which pauses for seconds \
        longer.")]
    Attach {
        #[command(flatten)]
        arguments: AttachArguments,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Remove the block device of a volume
    Detach(DetachArguments),
    /// Show the block devices of volumes
    Devices {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Print the name of the volume with this device, for udev
        #[arg(long, value_name = "DEVICE", conflicts_with = "json", hide = true)]
        name_of: Option<String>,
    },
    /// Inspect a journal or vault that no forebay uses, and write its data to a disk
    #[command(subcommand)]
    Rescue(RescueCommand),
    /// Print the completions of this command for a shell
    #[command(long_about = "Print the completions of this command for a shell.\n\
        For bash, `source <(forebay completions bash)` loads them, and the file \
        /usr/local/share/bash-completion/completions/forebay makes them permanent.")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a directory
    #[command(long_about = "Write the manual pages into a directory.\n\
        They go to man1 and man5 in it, as man expects: `forebay man /usr/local/share/man` \
        installs them.")]
    Man {
        /// The directory; it is created if it is missing
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{OVERRIDES, without_overrides};
    use clap::CommandFactory;
    use std::ffi::OsString;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_without_overrides_are_those_of_the_next_start() {
        let kept = ["forebay", "serve", "/dev/sdb", "--log", "info", "--workers=2"];
        let mut arguments: Vec<OsString> = kept[..3].iter().map(OsString::from).collect();
        for option in OVERRIDES {
            let twice = [OsString::from(option), "a".into(), format!("{option}=b").into()];
            arguments.extend(twice);
        }
        arguments.extend(kept[3..].iter().map(OsString::from));
        let Command::Serve(parsed) = Cli::parse_from(&arguments).command else { panic!() };
        let accepted = [parsed.accepted_disks, parsed.accepted_vaults, parsed.accepted_journals];
        assert!(accepted.iter().all(|volumes| *volumes == ["a", "b"]), "{accepted:?}");
        assert_eq!(without_overrides(arguments), kept);
        let disks = ["serve", "--", "--accept-lost-vault", "x"].map(OsString::from);
        assert_eq!(without_overrides(disks.clone()), disks);
    }

    #[test]
    fn disks_and_volumes_are_served_in_order() {
        let cli = Cli::parse_from(["forebay", "serve", "/dev/sdb", "--volume", "m=memory:1GiB"]);
        let Command::Serve(arguments) = cli.command else { panic!("{cli:?}") };
        let volumes = arguments.source().options.volumes;
        let texts: Vec<_> = volumes.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["sdb=/dev/sdb", "m=memory:1GiB"]);
    }
}
