"""Functions that `Source` generates, compiled with this module. Written by scripts/precompile.

The name of each is the checksum of its text. They have no globals here: `Source.compile` takes their code.
"""

# mypy: ignore-errors
# ruff: noqa
# fmt: off


# encoder of ApiVersionsRequest version 3
def fa00324c0(value, append):
    b1 = value.client_software_name.encode()
    n = len(b1)
    if n < 127:
        append(pack2(n + 1))
    else:
        append(long_string(n))
    append(b1)
    b3 = value.client_software_version.encode()
    n = len(b3)
    if n < 127:
        append(pack2(n + 1))
    else:
        append(long_string(n))
    append(b3)
    if value.unknown_tags:
        write_tags(append, value.unknown_tags)
    else:
        append(b'\x00')


# encoder of MetadataRequest version 13
def f474539b5(value, append):
    if value.include_cluster_authorized_operations != False:
        raise Unwritable("it is set, but this version does not have it")
    v1 = value.topics
    if v1 is None:
        append(b'\x00')
    else:
        a2 = v1
        n = len(a2)
        if n < 127:
            append(pack3(n + 1))
        else:
            append(encode_uvarint(n + 1))
        for i4, s5 in enumerate(a2):
            if len(s5.topic_id) != 16:
                raise Unwritable("a uuid that is not 16 bytes")
            append(pack6(s5.topic_id))
            v7 = s5.name
            if v7 is None:
                append(b'\x00')
            else:
                b8 = v7.encode()
                n = len(b8)
                if n < 127:
                    append(pack3(n + 1))
                else:
                    append(long_string(n))
                append(b8)
            if s5.unknown_tags:
                write_tags(append, s5.unknown_tags)
            else:
                append(b'\x00')
    if value.unknown_tags:
        append(pack9(value.allow_auto_topic_creation, value.include_topic_authorized_operations))
        write_tags(append, value.unknown_tags)
    else:
        append(pack10(value.allow_auto_topic_creation, value.include_topic_authorized_operations, 0))


# encoder of ListOffsetsRequest version 11
def f16ac6032(value, append):
    a1 = value.topics
    n = len(a1)
    if n < 127:
        append(pack2(value.replica_id, value.isolation_level, n + 1))
    else:
        append(pack3(value.replica_id, value.isolation_level))
        append(encode_uvarint(n + 1))
    for i4, s5 in enumerate(a1):
        b6 = s5.name.encode()
        n = len(b6)
        if n < 127:
            append(pack7(n + 1))
        else:
            append(long_string(n))
        append(b6)
        a8 = s5.partitions
        n = len(a8)
        if n < 127:
            append(pack7(n + 1))
        else:
            append(encode_uvarint(n + 1))
        for i9, s10 in enumerate(a8):
            if s10.max_num_offsets != 1:
                raise Unwritable("it is set, but this version does not have it")
            if s10.unknown_tags:
                append(pack11(s10.partition_index, s10.current_leader_epoch, s10.timestamp))
                write_tags(append, s10.unknown_tags)
            else:
                append(pack12(s10.partition_index, s10.current_leader_epoch, s10.timestamp, 0))
        if s5.unknown_tags:
            write_tags(append, s5.unknown_tags)
        else:
            append(b'\x00')
    if value.unknown_tags:
        append(pack13(value.timeout_ms))
        write_tags(append, value.unknown_tags)
    else:
        append(pack14(value.timeout_ms, 0))


# encoder of InitProducerIdRequest version 5
def ff0a10da6(value, append):
    if value.enable2_pc != False:
        raise Unwritable("it is set, but this version does not have it")
    if value.keep_prepared_txn != False:
        raise Unwritable("it is set, but this version does not have it")
    v1 = value.transactional_id
    if v1 is None:
        append(b'\x00')
    else:
        b2 = v1.encode()
        n = len(b2)
        if n < 127:
            append(pack3(n + 1))
        else:
            append(long_string(n))
        append(b2)
    if value.unknown_tags:
        append(pack4(value.transaction_timeout_ms, value.producer_id, value.producer_epoch))
        write_tags(append, value.unknown_tags)
    else:
        append(pack5(value.transaction_timeout_ms, value.producer_id, value.producer_epoch, 0))


# encoder of ProduceRequest version 11
def f22df1c24(value, append):
    v1 = value.transactional_id
    if v1 is None:
        append(b'\x00')
    else:
        b2 = v1.encode()
        n = len(b2)
        if n < 127:
            append(pack3(n + 1))
        else:
            append(long_string(n))
        append(b2)
    a4 = value.topic_data
    n = len(a4)
    if n < 127:
        append(pack5(value.acks, value.timeout_ms, n + 1))
    else:
        append(pack6(value.acks, value.timeout_ms))
        append(encode_uvarint(n + 1))
    for i7, s8 in enumerate(a4):
        b9 = s8.name.encode()
        n = len(b9)
        if n < 127:
            append(pack3(n + 1))
        else:
            append(long_string(n))
        append(b9)
        a10 = s8.partition_data
        n = len(a10)
        if n < 127:
            append(pack3(n + 1))
        else:
            append(encode_uvarint(n + 1))
        for i11, s12 in enumerate(a10):
            append(pack13(s12.index))
            v14 = s12.records
            if v14 is None:
                append(b'\x00')
            else:
                b15 = v14
                n = len(b15)
                if n < 127:
                    append(pack3(n + 1))
                else:
                    append(encode_uvarint(n + 1))
                append(b15)
            if s12.unknown_tags:
                write_tags(append, s12.unknown_tags)
            else:
                append(b'\x00')
        if s8.unknown_tags:
            write_tags(append, s8.unknown_tags)
        else:
            append(b'\x00')
    if value.unknown_tags:
        write_tags(append, value.unknown_tags)
    else:
        append(b'\x00')


# encoder of MetadataRequest version 0
def f16c618b4(value, append):
    if value.allow_auto_topic_creation != True:
        raise Unwritable("it is set, but this version does not have it")
    if value.include_cluster_authorized_operations != False:
        raise Unwritable("it is set, but this version does not have it")
    if value.include_topic_authorized_operations != False:
        raise Unwritable("it is set, but this version does not have it")
    if value.unknown_tags:
        raise Unwritable("unknown tagged fields are set, but this version cannot have any")
    a1 = value.topics
    append(pack2(len(a1)))
    for i3, s4 in enumerate(a1):
        if s4.unknown_tags:
            raise Unwritable("unknown tagged fields are set, but this version cannot have any")
        b5 = s4.name.encode()
        append(pack6(len(b5)))
        append(b5)


# encoder of RequestHeader version 1
def f23f365fb(value, append):
    if value.unknown_tags:
        raise Unwritable("unknown tagged fields are set, but this version cannot have any")
    append(pack1(value.request_api_key, value.request_api_version, value.correlation_id))
    v2 = value.client_id
    if v2 is None:
        append(b'\xff\xff')
    else:
        b3 = v2.encode()
        append(pack4(len(b3)))
        append(b3)


# encoder of RequestHeader version 2
def f5c6489ff(value, append):
    append(pack1(value.request_api_key, value.request_api_version, value.correlation_id))
    v2 = value.client_id
    if v2 is None:
        append(b'\xff\xff')
    else:
        b3 = v2.encode()
        append(pack4(len(b3)))
        append(b3)
    if value.unknown_tags:
        write_tags(append, value.unknown_tags)
    else:
        append(b'\x00')


# encoder of FetchRequest version 18
def fe9e413d0(value, append):
    if value.replica_id != -1:
        raise Unwritable("it is set, but this version does not have it")
    a1 = value.topics
    n = len(a1)
    if n < 127:
        append(pack2(value.max_wait_ms, value.min_bytes, value.max_bytes, value.isolation_level, value.session_id, value.session_epoch, n + 1))
    else:
        append(pack3(value.max_wait_ms, value.min_bytes, value.max_bytes, value.isolation_level, value.session_id, value.session_epoch))
        append(encode_uvarint(n + 1))
    for i4, s5 in enumerate(a1):
        if len(s5.topic_id) != 16:
            raise Unwritable("a uuid that is not 16 bytes")
        a6 = s5.partitions
        n = len(a6)
        if n < 127:
            append(pack7(s5.topic_id, n + 1))
        else:
            append(pack8(s5.topic_id))
            append(encode_uvarint(n + 1))
        for i9, s10 in enumerate(a6):
            append(pack11(s10.partition, s10.current_leader_epoch, s10.fetch_offset, s10.last_fetched_epoch, s10.log_start_offset, s10.partition_max_bytes))
            tags12 = [*s10.unknown_tags]
            if s10.replica_directory_id != b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00':
                parts13 = []
                if len(s10.replica_directory_id) != 16:
                    raise Unwritable("a uuid that is not 16 bytes")
                parts13.append(pack8(s10.replica_directory_id))
                tags12.append((0, b''.join(parts13)))
            if s10.high_watermark != 9223372036854775807:
                parts14 = []
                parts14.append(pack15(s10.high_watermark))
                tags12.append((1, b''.join(parts14)))
            if tags12:
                write_tags(append, tags12)
            else:
                append(b'\x00')
        if s5.unknown_tags:
            write_tags(append, s5.unknown_tags)
        else:
            append(b'\x00')
    a16 = value.forgotten_topics_data
    n = len(a16)
    if n < 127:
        append(pack17(n + 1))
    else:
        append(encode_uvarint(n + 1))
    for i18, s19 in enumerate(a16):
        if len(s19.topic_id) != 16:
            raise Unwritable("a uuid that is not 16 bytes")
        a20 = s19.partitions
        n = len(a20)
        if n < 127:
            append(pack7(s19.topic_id, n + 1))
        else:
            append(pack8(s19.topic_id))
            append(encode_uvarint(n + 1))
        append(integers21[len(a20)].pack(*a20))
        if s19.unknown_tags:
            write_tags(append, s19.unknown_tags)
        else:
            append(b'\x00')
    b22 = value.rack_id.encode()
    n = len(b22)
    if n < 127:
        append(pack17(n + 1))
    else:
        append(long_string(n))
    append(b22)
    tags23 = [*value.unknown_tags]
    if value.cluster_id != None:
        parts24 = []
        v25 = value.cluster_id
        if v25 is None:
            parts24.append(b'\x00')
        else:
            b26 = v25.encode()
            n = len(b26)
            if n < 127:
                parts24.append(pack17(n + 1))
            else:
                parts24.append(long_string(n))
            parts24.append(b26)
        tags23.append((0, b''.join(parts24)))
    if value.replica_state is not default28 and value.replica_state != default28:
        parts27 = []
        s29 = value.replica_state
        if s29.unknown_tags:
            parts27.append(pack30(s29.replica_id, s29.replica_epoch))
            write_tags(parts27.append, s29.unknown_tags)
        else:
            parts27.append(pack31(s29.replica_id, s29.replica_epoch, 0))
        tags23.append((1, b''.join(parts27)))
    if tags23:
        write_tags(append, tags23)
    else:
        append(b'\x00')


# decoder of ApiVersionsResponse version 3
def f5bb41619(data, p):
    end = len(data)
    view = memoryview(data)
    s1 = new(C2)
    s1.finalized_features = s1.supported_features = ()
    s1.finalized_features_epoch = -1
    s1.zk_migration_ready = False
    s1.error_code, n = unpack3(data, p)
    p += 3
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    n -= 1
    if not 0 <= n <= (end - p) // 7:
        raise count_error(n, end - p)
    if n:
        items4 = []
        for i5 in range(n):
            s6 = new(C7)
            s6.api_key, s6.min_version, s6.max_version, t = unpack8(data, p)
            p += 7
            if t:
                s6.unknown_tags, p = read_unknown_tags(data, p - 1)
            else:
                s6.unknown_tags = ()
            items4.append(s6)
        s1.api_keys = tuple(items4)
    else:
        s1.api_keys = ()
    s1.throttle_time_ms, t = unpack9(data, p)
    p += 5
    if t:
        t, p = read_uvarint(data, p - 1)
        unknown13 = []
        if t > (end - p) // 2:
            raise count_error(t, end - p)
        for _ in range(t):
            tag10, p = read_uvarint(data, p)
            size11, p = read_uvarint(data, p)
            start12 = p
            if size11 > end - p:
                raise length_error(size11, end - p)
            if tag10 == 0:
                n = data[p]
                p += 1
                if n > 127:
                    n += (data[p] - 1) << 7
                    p += 1
                    if n >> 14:
                        n, p = read_uvarint(data, p - 2)
                n -= 1
                if not 0 <= n <= (end - p) // 6:
                    raise count_error(n, end - p)
                if n:
                    items15 = []
                    for i16 in range(n):
                        s17 = new(C18)
                        n = data[p]
                        p += 1
                        if n > 127:
                            n += (data[p] - 1) << 7
                            p += 1
                            if n >> 14:
                                n, p = read_uvarint(data, p - 2)
                        q = p + n - 1
                        if not p <= q <= end:
                            raise length_error(q - p, end - p)
                        s17.name = data[p:q].decode()
                        p = q
                        s17.min_version, s17.max_version, t = unpack19(data, p)
                        p += 5
                        if t:
                            s17.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s17.unknown_tags = ()
                        items15.append(s17)
                    s1.supported_features = tuple(items15)
                else:
                    s1.supported_features = ()
            elif tag10 == 1:
                s1.finalized_features_epoch, = unpack20(data, p)
                p += 8
            elif tag10 == 2:
                n = data[p]
                p += 1
                if n > 127:
                    n += (data[p] - 1) << 7
                    p += 1
                    if n >> 14:
                        n, p = read_uvarint(data, p - 2)
                n -= 1
                if not 0 <= n <= (end - p) // 6:
                    raise count_error(n, end - p)
                if n:
                    items21 = []
                    for i22 in range(n):
                        s23 = new(C24)
                        n = data[p]
                        p += 1
                        if n > 127:
                            n += (data[p] - 1) << 7
                            p += 1
                            if n >> 14:
                                n, p = read_uvarint(data, p - 2)
                        q = p + n - 1
                        if not p <= q <= end:
                            raise length_error(q - p, end - p)
                        s23.name = data[p:q].decode()
                        p = q
                        s23.max_version_level, s23.min_version_level, t = unpack19(data, p)
                        p += 5
                        if t:
                            s23.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s23.unknown_tags = ()
                        items21.append(s23)
                    s1.finalized_features = tuple(items21)
                else:
                    s1.finalized_features = ()
            elif tag10 == 3:
                s1.zk_migration_ready, = unpack25(data, p)
                p += 1
            else:
                unknown13.append((tag10, bytes(data[p:p + size11])))
                p += size11
            if p != start12 + size11:
                raise tag_error(size11, p - start12)
        s1.unknown_tags = tuple(unknown13)
    else:
        s1.unknown_tags = ()
    return s1, p


# decoder of MetadataResponse version 13
def f9b5340c3(data, p):
    end = len(data)
    view = memoryview(data)
    s1 = new(C2)
    s1.cluster_authorized_operations = -2147483648
    s1.throttle_time_ms, n = unpack3(data, p)
    p += 5
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    n -= 1
    if not 0 <= n <= (end - p) // 11:
        raise count_error(n, end - p)
    if n:
        items4 = []
        for i5 in range(n):
            s6 = new(C7)
            s6.node_id, n = unpack3(data, p)
            p += 5
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            q = p + n - 1
            if not p <= q <= end:
                raise length_error(q - p, end - p)
            s6.host = data[p:q].decode()
            p = q
            s6.port, n = unpack3(data, p)
            p += 5
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            if n == 0:
                s6.rack = None
            else:
                q = p + n - 1
                if not p <= q <= end:
                    raise length_error(q - p, end - p)
                s6.rack = data[p:q].decode()
                p = q
            t = data[p]
            p += 1
            if t:
                s6.unknown_tags, p = read_unknown_tags(data, p - 1)
            else:
                s6.unknown_tags = ()
            items4.append(s6)
        s1.brokers = tuple(items4)
    else:
        s1.brokers = ()
    n = data[p]
    p += 1
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    if n == 0:
        s1.cluster_id = None
    else:
        q = p + n - 1
        if not p <= q <= end:
            raise length_error(q - p, end - p)
        s1.cluster_id = data[p:q].decode()
        p = q
    s1.controller_id, n = unpack3(data, p)
    p += 5
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    n -= 1
    if not 0 <= n <= (end - p) // 26:
        raise count_error(n, end - p)
    if n:
        items9 = []
        for i10 in range(n):
            s11 = new(C12)
            s11.error_code, n = unpack13(data, p)
            p += 3
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            if n == 0:
                s11.name = None
            else:
                q = p + n - 1
                if not p <= q <= end:
                    raise length_error(q - p, end - p)
                s11.name = data[p:q].decode()
                p = q
            s11.topic_id, s11.is_internal, n = unpack14(data, p)
            p += 18
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            n -= 1
            if not 0 <= n <= (end - p) // 18:
                raise count_error(n, end - p)
            if n:
                items15 = []
                for i16 in range(n):
                    s17 = new(C18)
                    s17.error_code, s17.partition_index, s17.leader_id, s17.leader_epoch, n = unpack19(data, p)
                    p += 15
                    if n > 127:
                        n += (data[p] - 1) << 7
                        p += 1
                        if n >> 14:
                            n, p = read_uvarint(data, p - 2)
                    n -= 1
                    if not 0 <= n <= (end - p) // 4:
                        raise count_error(n, end - p)
                    s17.replica_nodes = integers20[n].unpack_from(data, p)
                    p += n * 4
                    n = data[p]
                    p += 1
                    if n > 127:
                        n += (data[p] - 1) << 7
                        p += 1
                        if n >> 14:
                            n, p = read_uvarint(data, p - 2)
                    n -= 1
                    if not 0 <= n <= (end - p) // 4:
                        raise count_error(n, end - p)
                    s17.isr_nodes = integers20[n].unpack_from(data, p)
                    p += n * 4
                    n = data[p]
                    p += 1
                    if n > 127:
                        n += (data[p] - 1) << 7
                        p += 1
                        if n >> 14:
                            n, p = read_uvarint(data, p - 2)
                    n -= 1
                    if not 0 <= n <= (end - p) // 4:
                        raise count_error(n, end - p)
                    s17.offline_replicas = integers20[n].unpack_from(data, p)
                    p += n * 4
                    t = data[p]
                    p += 1
                    if t:
                        s17.unknown_tags, p = read_unknown_tags(data, p - 1)
                    else:
                        s17.unknown_tags = ()
                    items15.append(s17)
                s11.partitions = tuple(items15)
            else:
                s11.partitions = ()
            s11.topic_authorized_operations, t = unpack3(data, p)
            p += 5
            if t:
                s11.unknown_tags, p = read_unknown_tags(data, p - 1)
            else:
                s11.unknown_tags = ()
            items9.append(s11)
        s1.topics = tuple(items9)
    else:
        s1.topics = ()
    s1.error_code, t = unpack13(data, p)
    p += 3
    if t:
        s1.unknown_tags, p = read_unknown_tags(data, p - 1)
    else:
        s1.unknown_tags = ()
    return s1, p


# decoder of ListOffsetsResponse version 11
def f4800fe5e(data, p):
    end = len(data)
    view = memoryview(data)
    s1 = new(C2)
    s1.throttle_time_ms, n = unpack3(data, p)
    p += 5
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    n -= 1
    if not 0 <= n <= (end - p) // 3:
        raise count_error(n, end - p)
    if n:
        items4 = []
        for i5 in range(n):
            s6 = new(C7)
            n = data[p]
            p += 1
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            q = p + n - 1
            if not p <= q <= end:
                raise length_error(q - p, end - p)
            s6.name = data[p:q].decode()
            p = q
            n = data[p]
            p += 1
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            n -= 1
            if not 0 <= n <= (end - p) // 27:
                raise count_error(n, end - p)
            if n:
                items9 = []
                for i10 in range(n):
                    s11 = new(C12)
                    s11.old_style_offsets = ()
                    s11.partition_index, s11.error_code, s11.timestamp, s11.offset, s11.leader_epoch, t = unpack13(data, p)
                    p += 27
                    if t:
                        s11.unknown_tags, p = read_unknown_tags(data, p - 1)
                    else:
                        s11.unknown_tags = ()
                    items9.append(s11)
                s6.partitions = tuple(items9)
            else:
                s6.partitions = ()
            t = data[p]
            p += 1
            if t:
                s6.unknown_tags, p = read_unknown_tags(data, p - 1)
            else:
                s6.unknown_tags = ()
            items4.append(s6)
        s1.topics = tuple(items4)
    else:
        s1.topics = ()
    t = data[p]
    p += 1
    if t:
        s1.unknown_tags, p = read_unknown_tags(data, p - 1)
    else:
        s1.unknown_tags = ()
    return s1, p


# decoder of InitProducerIdResponse version 5
def f09bdbce4(data, p):
    end = len(data)
    view = memoryview(data)
    s1 = new(C2)
    s1.ongoing_txn_producer_epoch = s1.ongoing_txn_producer_id = -1
    s1.throttle_time_ms, s1.error_code, s1.producer_id, s1.producer_epoch, t = unpack3(data, p)
    p += 17
    if t:
        s1.unknown_tags, p = read_unknown_tags(data, p - 1)
    else:
        s1.unknown_tags = ()
    return s1, p


# decoder of ProduceResponse version 11
def fcedc6033(data, p):
    end = len(data)
    view = memoryview(data)
    s1 = new(C2)
    s1.node_endpoints = ()
    n = data[p]
    p += 1
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    n -= 1
    if not 0 <= n <= (end - p) // 3:
        raise count_error(n, end - p)
    if n:
        items4 = []
        for i5 in range(n):
            s6 = new(C7)
            s6.topic_id = b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00'
            n = data[p]
            p += 1
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            q = p + n - 1
            if not p <= q <= end:
                raise length_error(q - p, end - p)
            s6.name = data[p:q].decode()
            p = q
            n = data[p]
            p += 1
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            n -= 1
            if not 0 <= n <= (end - p) // 33:
                raise count_error(n, end - p)
            if n:
                items8 = []
                for i9 in range(n):
                    s10 = new(C11)
                    s10.current_leader = default12
                    s10.index, s10.error_code, s10.base_offset, s10.log_append_time_ms, s10.log_start_offset, n = unpack13(data, p)
                    p += 31
                    if n > 127:
                        n += (data[p] - 1) << 7
                        p += 1
                        if n >> 14:
                            n, p = read_uvarint(data, p - 2)
                    n -= 1
                    if not 0 <= n <= (end - p) // 6:
                        raise count_error(n, end - p)
                    if n:
                        items14 = []
                        for i15 in range(n):
                            s16 = new(C17)
                            s16.batch_index, n = unpack18(data, p)
                            p += 5
                            if n > 127:
                                n += (data[p] - 1) << 7
                                p += 1
                                if n >> 14:
                                    n, p = read_uvarint(data, p - 2)
                            if n == 0:
                                s16.batch_index_error_message = None
                            else:
                                q = p + n - 1
                                if not p <= q <= end:
                                    raise length_error(q - p, end - p)
                                s16.batch_index_error_message = data[p:q].decode()
                                p = q
                            t = data[p]
                            p += 1
                            if t:
                                s16.unknown_tags, p = read_unknown_tags(data, p - 1)
                            else:
                                s16.unknown_tags = ()
                            items14.append(s16)
                        s10.record_errors = tuple(items14)
                    else:
                        s10.record_errors = ()
                    n = data[p]
                    p += 1
                    if n > 127:
                        n += (data[p] - 1) << 7
                        p += 1
                        if n >> 14:
                            n, p = read_uvarint(data, p - 2)
                    if n == 0:
                        s10.error_message = None
                    else:
                        q = p + n - 1
                        if not p <= q <= end:
                            raise length_error(q - p, end - p)
                        s10.error_message = data[p:q].decode()
                        p = q
                    t = data[p]
                    p += 1
                    if t:
                        t, p = read_uvarint(data, p - 1)
                        unknown22 = []
                        if t > (end - p) // 2:
                            raise count_error(t, end - p)
                        for _ in range(t):
                            tag19, p = read_uvarint(data, p)
                            size20, p = read_uvarint(data, p)
                            start21 = p
                            if size20 > end - p:
                                raise length_error(size20, end - p)
                            if tag19 == 0:
                                s23 = new(C24)
                                s23.leader_id, s23.leader_epoch, t = unpack25(data, p)
                                p += 9
                                if t:
                                    s23.unknown_tags, p = read_unknown_tags(data, p - 1)
                                else:
                                    s23.unknown_tags = ()
                                s10.current_leader = s23
                            else:
                                unknown22.append((tag19, bytes(data[p:p + size20])))
                                p += size20
                            if p != start21 + size20:
                                raise tag_error(size20, p - start21)
                        s10.unknown_tags = tuple(unknown22)
                    else:
                        s10.unknown_tags = ()
                    items8.append(s10)
                s6.partition_responses = tuple(items8)
            else:
                s6.partition_responses = ()
            t = data[p]
            p += 1
            if t:
                s6.unknown_tags, p = read_unknown_tags(data, p - 1)
            else:
                s6.unknown_tags = ()
            items4.append(s6)
        s1.responses = tuple(items4)
    else:
        s1.responses = ()
    s1.throttle_time_ms, t = unpack18(data, p)
    p += 5
    if t:
        t, p = read_uvarint(data, p - 1)
        unknown29 = []
        if t > (end - p) // 2:
            raise count_error(t, end - p)
        for _ in range(t):
            tag26, p = read_uvarint(data, p)
            size27, p = read_uvarint(data, p)
            start28 = p
            if size27 > end - p:
                raise length_error(size27, end - p)
            if tag26 == 0:
                n = data[p]
                p += 1
                if n > 127:
                    n += (data[p] - 1) << 7
                    p += 1
                    if n >> 14:
                        n, p = read_uvarint(data, p - 2)
                n -= 1
                if not 0 <= n <= (end - p) // 11:
                    raise count_error(n, end - p)
                if n:
                    items30 = []
                    for i31 in range(n):
                        s32 = new(C33)
                        s32.node_id, n = unpack18(data, p)
                        p += 5
                        if n > 127:
                            n += (data[p] - 1) << 7
                            p += 1
                            if n >> 14:
                                n, p = read_uvarint(data, p - 2)
                        q = p + n - 1
                        if not p <= q <= end:
                            raise length_error(q - p, end - p)
                        s32.host = data[p:q].decode()
                        p = q
                        s32.port, n = unpack18(data, p)
                        p += 5
                        if n > 127:
                            n += (data[p] - 1) << 7
                            p += 1
                            if n >> 14:
                                n, p = read_uvarint(data, p - 2)
                        if n == 0:
                            s32.rack = None
                        else:
                            q = p + n - 1
                            if not p <= q <= end:
                                raise length_error(q - p, end - p)
                            s32.rack = data[p:q].decode()
                            p = q
                        t = data[p]
                        p += 1
                        if t:
                            s32.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s32.unknown_tags = ()
                        items30.append(s32)
                    s1.node_endpoints = tuple(items30)
                else:
                    s1.node_endpoints = ()
            else:
                unknown29.append((tag26, bytes(data[p:p + size27])))
                p += size27
            if p != start28 + size27:
                raise tag_error(size27, p - start28)
        s1.unknown_tags = tuple(unknown29)
    else:
        s1.unknown_tags = ()
    return s1, p


# decoder of ResponseHeader version 1
def f8c6aa740(data, p):
    end = len(data)
    view = memoryview(data)
    s1 = new(C2)
    s1.correlation_id, t = unpack3(data, p)
    p += 5
    if t:
        s1.unknown_tags, p = read_unknown_tags(data, p - 1)
    else:
        s1.unknown_tags = ()
    return s1, p


# decoder of FetchResponse version 18
def f3a12e4d3(data, p):
    end = len(data)
    s1 = new(C2)
    s1.node_endpoints = ()
    s1.responses = ()
    s1.throttle_time_ms, s1.error_code, s1.session_id, n = unpack3(data, p)
    p += 11
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    return s1, n - 1, p


# decoder of FetchResponse version 18
def fc10727fd(data, p):
    end = len(data)
    s1 = new(C2)
    s1.topic = ''
    s1.partitions = ()
    s1.topic_id, n = unpack3(data, p)
    p += 17
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    return s1, n - 1, p


# decoder of FetchResponse version 18
def fb26fda05(data, p):
    end = len(data)
    s1 = new(C2)
    s1.diverging_epoch = default3
    s1.current_leader = default4
    s1.snapshot_id = default5
    s1.partition_index, s1.error_code, s1.high_watermark, s1.last_stable_offset, s1.log_start_offset, n = unpack6(data, p)
    p += 31
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    if n == 0:
        s1.aborted_transactions = None
    else:
        n -= 1
        if not 0 <= n <= (end - p) // 17:
            raise count_error(n, end - p)
        if n:
            items7 = []
            for i8 in range(n):
                s9 = new(C10)
                s9.producer_id, s9.first_offset, t = unpack11(data, p)
                p += 17
                if t:
                    s9.unknown_tags, p = read_unknown_tags(data, p - 1)
                else:
                    s9.unknown_tags = ()
                items7.append(s9)
            s1.aborted_transactions = tuple(items7)
        else:
            s1.aborted_transactions = ()
    s1.records = None
    s1.preferred_read_replica, n = unpack12(data, p)
    p += 5
    if n > 127:
        n += (data[p] - 1) << 7
        p += 1
        if n >> 14:
            n, p = read_uvarint(data, p - 2)
    return s1, n - 1, p


# decoder of FetchResponse version 18
def fb3ae8a78(data, p, left, items, spans):
    end = len(data)
    start = p
    try:
        while left:
            s1 = new(C2)
            s1.diverging_epoch = default3
            s1.current_leader = default4
            s1.snapshot_id = default5
            s1.partition_index, s1.error_code, s1.high_watermark, s1.last_stable_offset, s1.log_start_offset, n = unpack6(data, p)
            p += 31
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            if n == 0:
                s1.aborted_transactions = None
            else:
                n -= 1
                if not 0 <= n <= (end - p) // 17:
                    raise count_error(n, end - p)
                if n:
                    items7 = []
                    for i8 in range(n):
                        s9 = new(C10)
                        s9.producer_id, s9.first_offset, t = unpack11(data, p)
                        p += 17
                        if t:
                            s9.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s9.unknown_tags = ()
                        items7.append(s9)
                    s1.aborted_transactions = tuple(items7)
                else:
                    s1.aborted_transactions = ()
            s1.records = None
            s1.preferred_read_replica, n = unpack12(data, p)
            p += 5
            if n > 127:
                n += (data[p] - 1) << 7
                p += 1
                if n >> 14:
                    n, p = read_uvarint(data, p - 2)
            n -= 1
            begin = p
            if n > 0:
                p += n
                if p > end:
                    break
            elif n < -1:
                break
            stop = p
            t = data[p]
            p += 1
            if t:
                t, p = read_uvarint(data, p - 1)
                unknown17 = []
                if t > (end - p) // 2:
                    raise count_error(t, end - p)
                for _ in range(t):
                    tag14, p = read_uvarint(data, p)
                    size15, p = read_uvarint(data, p)
                    start16 = p
                    if size15 > end - p:
                        raise length_error(size15, end - p)
                    if tag14 == 0:
                        s18 = new(C19)
                        s18.epoch, s18.end_offset, t = unpack20(data, p)
                        p += 13
                        if t:
                            s18.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s18.unknown_tags = ()
                        s1.diverging_epoch = s18
                    elif tag14 == 1:
                        s21 = new(C22)
                        s21.leader_id, s21.leader_epoch, t = unpack23(data, p)
                        p += 9
                        if t:
                            s21.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s21.unknown_tags = ()
                        s1.current_leader = s21
                    elif tag14 == 2:
                        s24 = new(C25)
                        s24.end_offset, s24.epoch, t = unpack26(data, p)
                        p += 13
                        if t:
                            s24.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s24.unknown_tags = ()
                        s1.snapshot_id = s24
                    else:
                        unknown17.append((tag14, bytes(data[p:p + size15])))
                        p += size15
                    if p != start16 + size15:
                        raise tag_error(size15, p - start16)
                s1.unknown_tags = tuple(unknown17)
            else:
                s1.unknown_tags = ()
            if stop > begin:
                spans.append((s1, begin, stop))
            items.append(s1)
            left -= 1
            start = p
    except errors:
        pass
    return start, left


# decoder of FetchResponse version 18
def fd064aaaf(data, p, value):
    end = len(data)
    t = data[p]
    p += 1
    if t:
        t, p = read_uvarint(data, p - 1)
        unknown5 = []
        if t > (end - p) // 2:
            raise count_error(t, end - p)
        for _ in range(t):
            tag2, p = read_uvarint(data, p)
            size3, p = read_uvarint(data, p)
            start4 = p
            if size3 > end - p:
                raise length_error(size3, end - p)
            if tag2 == 0:
                n = data[p]
                p += 1
                if n > 127:
                    n += (data[p] - 1) << 7
                    p += 1
                    if n >> 14:
                        n, p = read_uvarint(data, p - 2)
                n -= 1
                if not 0 <= n <= (end - p) // 11:
                    raise count_error(n, end - p)
                if n:
                    items6 = []
                    for i7 in range(n):
                        s8 = new(C9)
                        s8.node_id, n = unpack10(data, p)
                        p += 5
                        if n > 127:
                            n += (data[p] - 1) << 7
                            p += 1
                            if n >> 14:
                                n, p = read_uvarint(data, p - 2)
                        q = p + n - 1
                        if not p <= q <= end:
                            raise length_error(q - p, end - p)
                        s8.host = str(data[p:q], 'utf-8')
                        p = q
                        s8.port, n = unpack10(data, p)
                        p += 5
                        if n > 127:
                            n += (data[p] - 1) << 7
                            p += 1
                            if n >> 14:
                                n, p = read_uvarint(data, p - 2)
                        if n == 0:
                            s8.rack = None
                        else:
                            q = p + n - 1
                            if not p <= q <= end:
                                raise length_error(q - p, end - p)
                            s8.rack = str(data[p:q], 'utf-8')
                            p = q
                        t = data[p]
                        p += 1
                        if t:
                            s8.unknown_tags, p = read_unknown_tags(data, p - 1)
                        else:
                            s8.unknown_tags = ()
                        items6.append(s8)
                    value.node_endpoints = tuple(items6)
                else:
                    value.node_endpoints = ()
            else:
                unknown5.append((tag2, bytes(data[p:p + size3])))
                p += size3
            if p != start4 + size3:
                raise tag_error(size3, p - start4)
        value.unknown_tags = tuple(unknown5)
    else:
        value.unknown_tags = ()
    return p


# decoder of FetchResponse version 18
def fae66afc5(data, p, value):
    end = len(data)
    t = data[p]
    p += 1
    if t:
        value.unknown_tags, p = read_unknown_tags(data, p - 1)
    else:
        value.unknown_tags = ()
    return p


# decoder of FetchResponse version 18
def f5ec78a4e(data, p, value):
    end = len(data)
    t = data[p]
    p += 1
    if t:
        t, p = read_uvarint(data, p - 1)
        unknown5 = []
        if t > (end - p) // 2:
            raise count_error(t, end - p)
        for _ in range(t):
            tag2, p = read_uvarint(data, p)
            size3, p = read_uvarint(data, p)
            start4 = p
            if size3 > end - p:
                raise length_error(size3, end - p)
            if tag2 == 0:
                s6 = new(C7)
                s6.epoch, s6.end_offset, t = unpack8(data, p)
                p += 13
                if t:
                    s6.unknown_tags, p = read_unknown_tags(data, p - 1)
                else:
                    s6.unknown_tags = ()
                value.diverging_epoch = s6
            elif tag2 == 1:
                s9 = new(C10)
                s9.leader_id, s9.leader_epoch, t = unpack11(data, p)
                p += 9
                if t:
                    s9.unknown_tags, p = read_unknown_tags(data, p - 1)
                else:
                    s9.unknown_tags = ()
                value.current_leader = s9
            elif tag2 == 2:
                s12 = new(C13)
                s12.end_offset, s12.epoch, t = unpack14(data, p)
                p += 13
                if t:
                    s12.unknown_tags, p = read_unknown_tags(data, p - 1)
                else:
                    s12.unknown_tags = ()
                value.snapshot_id = s12
            else:
                unknown5.append((tag2, bytes(data[p:p + size3])))
                p += size3
            if p != start4 + size3:
                raise tag_error(size3, p - start4)
        value.unknown_tags = tuple(unknown5)
    else:
        value.unknown_tags = ()
    return p
