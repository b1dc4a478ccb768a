#!/bin/bash
# Runs the tests of the kernel side on Debian's kernels, each in a virtual machine of its own.
#
#   [ACCELERATOR=kvm] ebpf/tests/kernels/run.sh [PACKAGE...]
#
# Kernels and busybox are downloaded with apt and unpacked under target/kernels, never installed. Where /dev/kvm
# does not serve, qemu emulates the machine, which takes some three minutes a kernel.
set -euo pipefail
cd "$(dirname "$0")/../../.."

packages=("$@")
[ ${#packages[@]} -gt 0 ] || packages=(linux-image-cloud-amd64 linux-image-6.12-cloud-amd64)
work=$PWD/target/kernels

for tool in qemu-system-x86_64 cpio mkfs.ext4 dpkg-deb; do
	command -v "$tool" > /dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$tool" > /dev/null || {
		echo "no $tool: apt-get install qemu-system-x86 cpio e2fsprogs dpkg" >&2
		exit 1
	}
done
PATH=$PATH:/usr/sbin:/sbin

# The package that a meta-package stands for, unpacked. Prints the folder.
unpack() {
	local package=$1 real folder
	real=$(apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
	real=${real:-$package}
	folder=$work/$real
	if [ ! -e "$folder/unpacked" ]; then
		rm -rf "$folder" && mkdir -p "$folder"
		(cd "$folder" && apt-get download -qq "$real" 2> /dev/null && dpkg-deb -x ./*.deb . && rm ./*.deb && touch unpacked)
	fi
	echo "$folder"
}

# A root file system with the tests, what they need, and the modules for a disk, in $work/root.gz.
root_with() {
	local kernel=$1 version=$2 root=$work/root path
	rm -rf "$root" && mkdir -p "$root"/{bin,dev,proc,sys,tmp,tests/deps,tests/examples,"$PWD/target/tmp"}
	cp "$busybox/bin/busybox" "$root/bin/"
	cp "${tests[@]}" "$root/tests/deps/"
	cp target/debug/examples/workload "$root/tests/examples/"
	for path in $(ldd "${tests[@]}" target/debug/examples/workload | grep -o '/[^ ):]*\.so[^ ):]*' | sort -u); do
		cp --parents -L "$path" "$root"
	done
	for path in drivers/virtio drivers/block fs/ext4 fs/jbd2 fs/mbcache lib crypto arch/x86/crypto; do
		# What a kernel has built in is no module.
		(cd "$kernel" && cp -r --parents lib/modules/"$version"/kernel/"$path"* "$root" 2> /dev/null) || true
	done
	cp "$kernel/lib/modules/$version"/modules.{order,builtin} "$root/lib/modules/$version"
	cat > "$root/init" <<-EOF
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		export PATH=/bin
		mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
		mkdir -p /lib/modules/\$(uname -r)
		depmod
		for module in virtio_pci virtio_blk crc32c_generic ext4; do modprobe \$module; done
		ip link set lo up
		mount -t ext4 /dev/vda $PWD/target/tmp
		echo "RUNNING ON \$(uname -r)"
		failed=0
		for test in /tests/deps/*; do \$test --test-threads=1 || failed=1; done
		echo "FAILED=\$failed"
		poweroff -f
	EOF
	chmod +x "$root/init"
	(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) > "$work/root.gz"
}

# Boots the kernel and returns when the machine is off. Fails when it has not come up after a minute and a half:
# some virtual machines offer a /dev/kvm in which a kernel hangs.
boot() {
	local accelerator=$1 kernel=$2 log=$3 pid waited
	timeout 1800 qemu-system-x86_64 -accel "$accelerator" -cpu max -smp 2 -m 1024 -nographic -no-reboot -nodefaults \
		-serial stdio -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/root.gz" -append "console=ttyS0 panic=-1" \
		-drive file="$work/disk",format=raw,if=virtio < /dev/null > "$log" 2>&1 &
	pid=$!
	for waited in {1..90}; do
		sleep 1
		if grep -aq '^RUNNING ON' "$log" || ! kill -0 $pid 2> /dev/null; then break; fi
	done
	if [ "$waited" -eq 90 ] && [ "$accelerator" = kvm ]; then kill $pid; fi
	wait $pid || true
	grep -aq '^RUNNING ON' "$log"
}

# One thread emulates all CPUs: with several, one may still execute an instruction that another has patched away
# (the kernel patches its tracepoints in and out), and the kernel panics with "int3".
emulation=tcg,thread=single
accelerator=$emulation
[ -w /dev/kvm ] && accelerator=kvm
accelerator=${ACCELERATOR:-$accelerator}

cargo test -q -p stallscope-ebpf --no-run
mapfile -t tests < <(cargo test -p stallscope-ebpf --no-run 2>&1 | sed -n 's/^ *Executable tests\/\(job\/main\|detach\)\.rs (\(.*\))$/\2/p')
[ ${#tests[@]} -eq 2 ] || { echo "cargo built ${#tests[@]} tests where there are 2" >&2; exit 1; }
busybox=$(unpack busybox-static)

status=0
for package in "${packages[@]}"; do
	kernel=$(unpack "$package")
	version=$(ls "$kernel/lib/modules")
	root_with "$kernel" "$version"
	rm -f "$work/disk" && truncate -s 512M "$work/disk" && mkfs.ext4 -q "$work/disk"
	log=$work/$version.log
	echo "$package ($version) ..."
	boot "$accelerator" "$kernel" "$log" || {
		echo "does not come up under $accelerator: qemu emulates the machine" >&2
		accelerator=$emulation
		boot "$accelerator" "$kernel" "$log" || true
	}
	sed 's/\r$//' "$log" | grep -aE '^(RUNNING|SKIPPED|test |test result|FAILED=|thread )' || true
	if grep -aq '^FAILED=0' "$log" && ! grep -aq '^SKIPPED' "$log"; then
		echo "$package ($version): holds"
	else
		echo "$package ($version): does not hold; see $log" >&2
		status=1
	fi
done
exit $status
